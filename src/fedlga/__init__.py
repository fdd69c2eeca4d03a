"""fedlga: federated learning for devices that are not equal.

import fedlga
experiment = fedlga.Experiment(method="fedlga", dataset="digits", rounds=20)
for record in fedlga.rounds(experiment, out="first"):
    print(record.round, record.accuracy)
run = fedlga.load("first")
run.frame(), run.model(), run.predict(images), run.resume(rounds=40)

To replace a part, extend Method, Policy, Schedule, Fleet, Partition, Dataset, AggregationRule, ServerOptimizer or
Tracker, and name your class as 'package.module:Class'. `fedlga.contracts` checks it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlga.core.aggregation.base import AggregationRule
    from fedlga.core.fleet import Effort, Fleet, Workload
    from fedlga.core.method import Direction, Method, WeightedSum, WeightedVector, recall, weigh_delta
    from fedlga.core.optimizers.base import ServerOptimizer
    from fedlga.core.policies.base import Decision, Policy, Treatment
    from fedlga.core.schedules.base import Plan, Schedule
    from fedlga.core.settings import BadInput, setting
    from fedlga.core.tracker import TrackedRun, Tracker
    from fedlga.core.types import Assignment, Contribution, Job, Local, Record, ServerState, Update
    from fedlga.experiments.config import Experiment
    from fedlga.experiments.presets import PRESETS, preset
    from fedlga.experiments.records import Run
    from fedlga.experiments.records import make_frame as frame
    from fedlga.experiments.records import read_run as load
    from fedlga.experiments.records import read_run as read
    from fedlga.experiments.run import run
    from fedlga.experiments.simulation import rounds
    from fedlga.experiments.studies import Comparison, Tuning, compare, tune
    from fedlga.learning.datasets.base import Dataset
    from fedlga.learning.metrics import Metric
    from fedlga.learning.partitions.base import Partition
    from fedlga.learning.task import Task, load_task

__version__ = "0.1.0"
__all__ = [
    "PRESETS",
    "AggregationRule",
    "Assignment",
    "BadInput",
    "Comparison",
    "Contribution",
    "Dataset",
    "Decision",
    "Direction",
    "Effort",
    "Experiment",
    "Fleet",
    "Job",
    "Local",
    "Method",
    "Metric",
    "Partition",
    "Plan",
    "Policy",
    "Record",
    "Run",
    "Schedule",
    "ServerOptimizer",
    "ServerState",
    "Task",
    "TrackedRun",
    "Tracker",
    "Treatment",
    "Tuning",
    "Update",
    "WeightedSum",
    "WeightedVector",
    "Workload",
    "compare",
    "frame",
    "load",
    "load_task",
    "preset",
    "read",
    "recall",
    "rounds",
    "run",
    "setting",
    "tune",
    "weigh_delta",
]

# Imported when first used: torch takes seconds, and `import fedlga` should not.
_LAZY_IMPORTS = {
    "experiments.config": ("Experiment",),
    "experiments.presets": ("PRESETS", "preset"),
    "experiments.records": ("Run",),
    "experiments.run": ("run",),
    "experiments.simulation": ("rounds",),
    "experiments.studies": ("Comparison", "Tuning", "compare", "tune"),
    "core.settings": ("BadInput", "setting"),
    "core.types": ("Assignment", "Contribution", "Job", "Local", "Record", "ServerState", "Update"),
    "core.method": ("Direction", "Method", "WeightedSum", "WeightedVector", "recall", "weigh_delta"),
    "core.policies.base": ("Decision", "Policy", "Treatment"),
    "core.fleet": ("Effort", "Fleet", "Workload"),
    "core.aggregation.base": ("AggregationRule",),
    "core.optimizers.base": ("ServerOptimizer",),
    "core.tracker": ("TrackedRun", "Tracker"),
    "core.schedules.base": ("Plan", "Schedule"),
    "learning.partitions.base": ("Partition",),
    "learning.datasets.base": ("Dataset",),
    "learning.metrics": ("Metric",),
    "learning.task": ("Task", "load_task"),
}
_RENAMED = {
    "frame": "experiments.records:make_frame",
    "load": "experiments.records:read_run",
    "read": "experiments.records:read_run",
}
_PATHS = {name: f"{module}:{name}" for module, names in _LAZY_IMPORTS.items() for name in names} | _RENAMED


def __getattr__(name: str) -> Any:
    if name not in _PATHS:
        raise AttributeError(f"module 'fedlga' has no attribute {name!r}")
    module, _, attribute = _PATHS[name].partition(":")
    return getattr(importlib.import_module(f"fedlga.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
