"""fedlga: federated learning for devices that are not equal.

import fedlga
experiment = fedlga.Experiment(method="fedlga", dataset="digits", rounds=20)
for record in fedlga.rounds(experiment):
    print(record.round, record.accuracy)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .experiment import PRESETS, Experiment, preset
    from .runs import Run, frame, run
    from .settings import BadInput
    from .simulation import rounds
    from .types import Record

__version__ = "0.1.0"
__all__ = ["PRESETS", "BadInput", "Experiment", "Record", "Run", "frame", "preset", "rounds", "run"]

# Imported when first used: torch takes seconds, and `import fedlga` should not.
_HOMES = {
    "Experiment": "experiment",
    "PRESETS": "experiment",
    "preset": "experiment",
    "BadInput": "settings",
    "Record": "types",
    "rounds": "simulation",
    "run": "runs",
    "Run": "runs",
    "frame": "runs",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedlga' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
