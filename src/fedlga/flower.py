"""The same federation through Flower: its nodes, its transport, its simulation.

For `fedlga run --backend flower` nothing here needs to be called. For an app of your own:

from fedlga.flower import FedLGA                      # a strategy, in place of Flower's FedAvg
from fedlga.flower import FedBuff                     # an asynchronous one
from fedlga.flower import client_app, server_app      # or a whole app, with deadlines that keep unfinished work
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedlga.backends.flower.installed import turn_off_telemetry

if TYPE_CHECKING:
    from fedlga.backends.flower.fedbuff import FedBuff
    from fedlga.backends.flower.local_terms import LocalTerms
    from fedlga.backends.flower.own_completion import complete_own_mod
    from fedlga.backends.flower.private_strategy import PrivateFedLGA
    from fedlga.backends.flower.strategies import FedDyn, FedLGA, FedNova, Scaffold
    from fedlga.experiments.flower_client import client_app
    from fedlga.experiments.flower_server import server_app

turn_off_telemetry()  # before Flower is imported

__all__ = [
    "FedBuff",
    "FedDyn",
    "FedLGA",
    "FedNova",
    "LocalTerms",
    "PrivateFedLGA",
    "Scaffold",
    "client_app",
    "complete_own_mod",
    "server_app",
]

_LAZY_IMPORTS = {
    "server_app": "fedlga.experiments.flower_server",
    "client_app": "fedlga.experiments.flower_client",
    "FedBuff": "fedlga.backends.flower.fedbuff",
    "FedLGA": "fedlga.backends.flower.strategies",
    "FedNova": "fedlga.backends.flower.strategies",
    "Scaffold": "fedlga.backends.flower.strategies",
    "FedDyn": "fedlga.backends.flower.strategies",
    "LocalTerms": "fedlga.backends.flower.local_terms",
    "PrivateFedLGA": "fedlga.backends.flower.private_strategy",
    "complete_own_mod": "fedlga.backends.flower.own_completion",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY_IMPORTS:
        raise AttributeError(f"module 'fedlga.flower' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY_IMPORTS[name]), name)
