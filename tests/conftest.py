"""Settings of all tests, made before any test is imported; and the order in which the files are run."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Flower reads this when it is imported, and would tell its makers of every test.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

# One thread a test process: two workers of pytest with two threads each wait for each other's cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples every time, so that a change fails by its own fault; HYPOTHESIS_PROFILE=search looks for new ones.
settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first, each with all its tests in their order.

    pytest-xdist gives a whole file to the next free worker: a long one at the end would keep the others waiting.
    """
    seconds: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("slow")
        here = 0.0 if marker is None else marker.kwargs.get("seconds", 10.0)
        seconds[item.path] = max(here, seconds.get(item.path, 0.0))
    items.sort(key=lambda item: -seconds[item.path])  # files that are equally slow stay in their order
