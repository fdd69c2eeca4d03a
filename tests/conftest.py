"""Settings of all tests, made before any test is imported; and the order in which the files are run."""

import os

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
    """Put files with slow tests first, each with all its tests in their order.

    pytest-xdist gives a whole file to the next free worker: a long one at the end would keep the others waiting.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # the sort is stable
