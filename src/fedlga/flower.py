"""The same federation through Flower: its nodes, its transport, its simulation.

For `fedlga run --backend flower` nothing here needs to be called. For an app of your own:

from fedlga.flower import FedLGA                      # a strategy, in place of Flower's FedAvg
from fedlga.flower import client_app, server_app      # or a whole app, with deadlines that keep unfinished work
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from ..settings import BadInput

if TYPE_CHECKING:
    from .aggregator import server_app
    from .device import client_app
    from .strategies import FedDyn, FedLGA, FedNova, Scaffold
    from .terms import LocalTerms

__all__ = ["FedDyn", "FedLGA", "FedNova", "LocalTerms", "Scaffold", "client_app", "server_app"]

# Flower tells its makers about every start unless told not to. Whoever wants that can set these before.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

_HOMES = {
    "server_app": "aggregator",
    "client_app": "device",
    "FedLGA": "strategies",
    "FedNova": "strategies",
    "Scaffold": "strategies",
    "FedDyn": "strategies",
    "LocalTerms": "terms",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlga.flower' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def check_installed() -> None:
    """Say it in one line where Flower is not there."""
    if importlib.util.find_spec("flwr") is None:
        raise BadInput("backend: flower is not installed; pip install 'fedlga[flower]'")
