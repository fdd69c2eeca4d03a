"""The measures of a run: every number of a summary, with its title and format, in one list.

Summaries, comparisons, the terminal's tables and the HTML report all read this list: a new column is one entry here.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlga.core.audit import average_errors
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment

LAST = 10  # evaluations: with few classes a device, accuracy jumps from round to round
CLOSING = 0.2  # share of the simulated time over which the accuracy at the end is averaged


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    name: str  # in summary.json and in CSV files; people script against it
    title: str  # of a column
    format: str
    compute: Callable[[Experiment, Sequence[Record]], float | None]
    table: str = ""  # the comparison's table that shows it: "target", "end", or none
    short: str = ""  # title in the terminal, where 80 columns must do
    in_report: bool = False
    only_audited: bool = False  # absent from the summary of a run that was not audited

    def text(self, value: float | None) -> str:
        """Return a value as text."""
        return "-" if value is None else f"{value:{self.format}}"


def rounds_until_target(e: Experiment, records: Sequence[Record]) -> Sequence[Record] | None:
    """Return the rounds up to the one that reached the target; None if none did."""
    hit = next((i for i, r in enumerate(records) if r.accuracy is not None and r.accuracy >= e.target), None)
    return None if hit is None else records[: hit + 1]


def _to_target(field: str) -> Callable[[Experiment, Sequence[Record]], float | None]:
    def compute(e: Experiment, records: Sequence[Record]) -> float | None:
        until = rounds_until_target(e, records)
        return None if until is None else sum(getattr(r, field) for r in until)

    return compute


def _rounds_to_target(e: Experiment, records: Sequence[Record]) -> float | None:
    until = rounds_until_target(e, records)
    return None if until is None else until[-1].round


def _last(field: str) -> Callable[[Experiment, Sequence[Record]], float | None]:
    def compute(e: Experiment, records: Sequence[Record]) -> float | None:
        values = known_values(records, field)[-LAST:]
        return sum(values) / len(values) if values else None

    return compute


def _closing(field: str) -> Callable[[Experiment, Sequence[Record]], float | None]:
    """Return the mean over the last fifth of the simulated time: the same for rounds of any length."""

    def compute(e: Experiment, records: Sequence[Record]) -> float | None:
        ends = list(itertools.accumulate(r.simulated_seconds for r in records))
        late = [r for r, end in zip(records, ends, strict=True) if end > (1 - CLOSING) * ends[-1]]
        values = known_values(late, field) or known_values(records, field)[-1:]
        return sum(values) / len(values) if values else None

    return compute


def _total(field: str) -> Callable[[Experiment, Sequence[Record]], float | None]:
    return lambda e, records: sum(getattr(r, field) for r in records)


def _error(name: str) -> Callable[[Experiment, Sequence[Record]], float | None]:
    return lambda e, records: average_errors(records)[name]


def known_values(records: Sequence[Record], field: str) -> list[float]:
    """Return the values of a field in the rounds that have one."""
    return [value for r in records if (value := getattr(r, field)) is not None]


MEASURES = [
    Measure("rounds_to_target", "rounds", ".0f", _rounds_to_target, "target", in_report=True),
    Measure("seconds_to_target", "seconds", ".1f", _to_target("seconds"), "target", in_report=True),
    Measure(
        "simulated_seconds_to_target",
        "simulated seconds",
        ".0f",
        _to_target("simulated_seconds"),
        "target",
        short="simulated s",
        in_report=True,
    ),
    Measure(
        "best_accuracy",
        "best accuracy",
        ".1%",
        lambda e, records: max(known_values(records, "accuracy"), default=None),
        "target",
        short="best",
        in_report=True,
    ),
    Measure(
        "final_accuracy",
        "final accuracy",
        ".1%",
        lambda e, records: (known_values(records, "accuracy") or [None])[-1],
    ),
    Measure("last_accuracy", "accuracy at the end", ".1%", _last("accuracy"), "end", short="accuracy", in_report=True),
    Measure(
        "last_accuracy_slow", "slow devices' data", ".1%", _last("accuracy_slow"), "end", short="slow", in_report=True
    ),
    Measure("last_accuracy_worst", "worst device", ".1%", _last("accuracy_worst"), "end", short="worst"),
    Measure("closing_accuracy", "accuracy, last fifth of the time", ".1%", _closing("accuracy")),
    Measure("closing_accuracy_slow", "slow devices' data, last fifth of the time", ".1%", _closing("accuracy_slow")),
    Measure("last_train_loss", "training loss at the end", ".3f", _last("train_loss")),
    Measure("seconds", "seconds in all", ".1f", _total("seconds")),
    Measure(
        "seconds_per_round",
        "seconds a round",
        ".3f",
        lambda e, records: sum(r.seconds for r in records) / len(records) if records else None,
        in_report=True,
    ),
    Measure(
        "simulated_seconds", "simulated seconds in all", ".0f", _total("simulated_seconds"), "end", short="simulated s"
    ),
    Measure("approximation_error", "error", ".2f", _error("approximation_error"), "end", only_audited=True),
    Measure("best_scale_error", "best multiple", ".2f", _error("best_scale_error"), only_audited=True),
    Measure("aggregate_error", "averaged update", ".2f", _error("aggregate_error"), only_audited=True),
]
BY_NAME: Mapping[str, Measure] = {m.name: m for m in MEASURES}


def summarise_run(e: Experiment, records: Sequence[Record]) -> dict[str, Any]:
    """Return the run in a few numbers. Names are stable: people script against them."""
    return {
        "method": e.method,
        "stragglers": e.policy,
        "dataset": e.dataset,
        "seed": e.seed,
        "rounds": len(records),
        "target": e.target,
        **{m.name: m.compute(e, records) for m in MEASURES if e.audit or not m.only_audited},
        "finished": is_finished(e, records),
        "diverged": bool(records) and records[-1].diverged,
        "versions": find_versions(),
    }


def is_finished(e: Experiment, records: Sequence[Record]) -> bool:
    """Return whether there is nothing left to do."""
    if not records:
        return False
    last = records[-1]
    reached = last.accuracy is not None and last.accuracy >= e.target
    over = e.time_limit is not None and sum(r.simulated_seconds for r in records) >= e.time_limit
    return last.round >= e.rounds or over or last.diverged or (e.stop_at_target and reached)


def find_versions() -> dict[str, str]:
    """Return the versions that make a result."""
    packages = {name: importlib.metadata.version(name) for name in ("fedlga", "torch", "numpy")}
    return {"python": platform.python_version(), **packages}


def describe_machine() -> str:
    """Return what this runs on, in a few words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores of {model or platform.machine()}"
