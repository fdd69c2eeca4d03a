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


@pytest.fixture
def local_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep what trackers write on this machine, and in the test's own folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database takes seconds to set up
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path))
