"""Whether Flower is there, and its telemetry, which is off unless the user turned it on."""

from __future__ import annotations

import importlib.util
import os

from fedlga.core.settings import BadInput


def turn_off_telemetry() -> None:
    """Tell Flower not to report every start to its makers. A user who wants that can set these variables before."""
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def check_installed() -> None:
    """Raise BadInput if Flower is not installed."""
    turn_off_telemetry()
    if importlib.util.find_spec("flwr") is None:
        raise BadInput("backend: flower is not installed; pip install 'fedlga[flower]'")
