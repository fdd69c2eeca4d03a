"""Trackers: what follows a run round by round, such as TensorBoard. A run is the same with a tracker or without."""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from fedlga.core.types import Record


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker is to follow."""

    name: str  # such as fedlga-digits-seed0
    folder: Path  # of the run
    settings: Mapping[str, Any]  # of the experiment, plain values by name
    round: int = 0  # rounds that are done: more than 0 if the run is continued, maybe from before its last record


class Tracker(ABC):
    """A dataclass of settings that gets a run's numbers, in this order: start, log for each round, end.

    The contract, which `fedlga check tracker package.module:Class` tries:

    - `check` raises BadInput if the tracker cannot be used here. It is called before anything is computed.
    - `start` gets the run. If it is continued (`run.round` is above 0), what was tracked of later rounds is replaced.
    - `log` gets the numbers of a round, by name: finite floats. A metric that was not measured in a round is not there.
    - `end` gets the summary, also of a run that was stopped, and of one that failed before its first round.
    - What it gets, it does not change.

    If it raises an error in the middle of a run, the run goes on without it.
    """

    def check(self) -> None:  # noqa: B027
        """Raise BadInput if it cannot be used here, for example because a package is not installed."""

    @abstractmethod
    def start(self, run: TrackedRun) -> None:
        """Begin to follow a run."""

    @abstractmethod
    def log(self, round: int, values: Mapping[str, float]) -> None:
        """Take the numbers of a round."""

    @abstractmethod
    def end(self, summary: Mapping[str, Any]) -> None:
        """Take the summary: the run is over, or was stopped."""


def import_package(module: str, extra: str) -> Any:
    """Return an optional package; BadInput says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadInput(f"--track: {extra} is not installed; pip install 'fedlga[{extra}]'") from error


def list_numbers(record: Record) -> dict[str, float]:
    """Return the numbers of a round that are worth following, by name."""
    values: dict[str, float | None] = {
        **record.metrics,
        "train_loss": record.train_loss,
        "lr": record.lr,
        "seconds": record.seconds,
        "simulated_seconds": record.simulated_seconds,
        "work_seconds": record.work_seconds,
        "bytes_down": record.bytes_down,
        "bytes_up": record.bytes_up,
        "slow_devices": len(record.slow),
        "used_updates": len(record.used),
        "completed_updates": len(record.scales),
    }
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}
