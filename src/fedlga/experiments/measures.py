"""The measures of a run: every number of a summary, with its title and format, in one list.

Summaries, comparisons, the terminal's tables and the HTML report all read this list: a new column is one entry here.
Measures are computed from the numbers of rounds, RoundNumbers; lists of devices are not kept for them.
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fedlga.core.audit import average_errors
from fedlga.core.types import Metrics, Record
from fedlga.experiments.config import Experiment

LAST = 10  # evaluations: with few classes a device, accuracy jumps from round to round
CLOSING = 0.2  # share of the simulated time over which the accuracy at the end is averaged


@dataclass(frozen=True, slots=True)
class RoundNumbers:
    """What the measures need of a record. A record also lists its devices, which may be many."""

    round: int
    metrics: Metrics
    train_loss: float | None
    train_objective: float | None
    seconds: float
    simulated_seconds: float
    work_seconds: float
    steps_done: int
    steps_wasted: int
    bytes_down: int
    bytes_up: int
    megabytes: float
    audit: dict[str, Any] | None
    diverged: bool


NUMBERS = tuple(field.name for field in fields(RoundNumbers))
Round = Record | RoundNumbers


@dataclass(frozen=True)
class Measure:
    """One number of a run."""

    name: str  # in summary.json and in CSV files; people script against it
    title: str  # of a column
    format: str
    compute: Callable[[Experiment, Sequence[Round]], float | None]
    table: str = ""  # the comparison's table that shows it: "target", "end", or none
    short: str = ""  # title in the terminal, where 80 columns must do
    in_report: bool = False
    to_target: bool = False  # says nothing about a run without a target
    only_audited: bool = False  # absent from the summary of a run that was not audited
    only_recorded: bool = False  # absent from the summary of a run that did not record its objective

    def belongs_to(self, e: Experiment) -> bool:
        """Return whether a run of this experiment has such a number."""
        return (e.audit or not self.only_audited) and (e.record is not None or not self.only_recorded)

    def text(self, value: float | None) -> str:
        """Return a value as text."""
        return "-" if value is None else f"{value:{self.format}}"


def value_of(record: Round, name: str) -> float | None:
    """Return a metric or another number of a round; None if it was not measured."""
    return record.metrics[name] if name in record.metrics else getattr(record, name, None)


def rounds_until_target(e: Experiment, records: Sequence[Round]) -> Sequence[Round] | None:
    """Return the rounds up to the one that reached the target; None if none did."""
    hit = next((i for i, r in enumerate(records) if e.reaches(value_of(r, e.target_metric))), None)
    return None if hit is None else records[: hit + 1]


Compute = Callable[[Experiment, Sequence[Round]], float | None]


def _to_target(field: str) -> Compute:
    def compute(e: Experiment, records: Sequence[Round]) -> float | None:
        until = rounds_until_target(e, records)
        return None if until is None else sum(getattr(r, field) for r in until)

    return compute


def knows_costs(records: Sequence[Round]) -> bool:
    """Return whether records say what rounds cost the devices: those of earlier versions do not."""
    return any(r.bytes_down for r in records)


def _cost(field: str) -> Compute:
    return lambda e, records: sum(getattr(r, field) for r in records) if knows_costs(records) else None


def _cost_to_target(field: str) -> Compute:
    def compute(e: Experiment, records: Sequence[Round]) -> float | None:
        until = rounds_until_target(e, records)
        return None if until is None else _cost(field)(e, until)

    return compute


def _steps(e: Experiment, records: Sequence[Round]) -> float | None:
    return sum(r.steps_done for r in records) if knows_costs(records) else None


def _rounds_to_target(e: Experiment, records: Sequence[Round]) -> float | None:
    until = rounds_until_target(e, records)
    return None if until is None else until[-1].round


def _best(name: str) -> Compute:
    def compute(e: Experiment, records: Sequence[Round]) -> float | None:
        values = known_values(records, name)
        return (min if e.better == "lower" else max)(values, default=None)

    return compute


def _final(name: str) -> Compute:
    def compute(e: Experiment, records: Sequence[Round]) -> float | None:
        evaluated = [r for r in records if any(value is not None for value in r.metrics.values())]
        return value_of(evaluated[-1], name) if evaluated else None

    return compute


def _last(name: str) -> Compute:
    def compute(e: Experiment, records: Sequence[Round]) -> float | None:
        values = known_values(records, name)[-LAST:]
        return sum(values) / len(values) if values else None

    return compute


def _closing(name: str) -> Compute:
    """Return the mean over the last fifth of the simulated time: the same for rounds of any length."""

    def compute(e: Experiment, records: Sequence[Round]) -> float | None:
        ends = list(itertools.accumulate(r.simulated_seconds for r in records))
        late = [r for r, end in zip(records, ends, strict=True) if end > (1 - CLOSING) * ends[-1]]
        values = known_values(late, name) or known_values(records, name)[-1:]
        return sum(values) / len(values) if values else None

    return compute


def _final_objective(e: Experiment, records: Sequence[Round]) -> float | None:
    values = known_values(records, "train_objective")
    return values[-1] if values else None


def _total(field: str) -> Compute:
    return lambda e, records: sum(getattr(r, field) for r in records)


def _error(name: str) -> Compute:
    return lambda e, records: average_errors(records)[name]


def known_values(records: Sequence[Round], name: str) -> list[float]:
    """Return the values of a metric or another number in the rounds that have one."""
    return [value for r in records if (value := value_of(r, name)) is not None]


def metric_format(name: str) -> str:
    """Return how a metric is written: accuracies as percentages, other numbers with four digits."""
    return ".1%" if name.split("_", maxsplit=1)[0] == "accuracy" or name.endswith("accuracy") else ".4g"


def is_percentage(name: str) -> bool:
    """Return whether a metric is written as a percentage, and so is a share between 0 and 1."""
    return metric_format(name).endswith("%")


def format_metric(name: str, value: float | None, *, digits: int = 1) -> str:
    """Return a metric's value as text; `digits` are those of a percentage."""
    if value is None:
        return "none"
    return f"{value:.{digits}%}" if is_percentage(name) else f"{value:{metric_format(name)}}"


def format_target(metric: str, target: float | None) -> str:
    """Return the target as text, with the metric's name unless it is accuracy: '65%', 'rmse 0.5'."""
    if target is None:
        return "no target"
    value = f"{target:.0%}" if is_percentage(metric) else f"{target:g}"
    return value if metric == "accuracy" else f"{metric} {value}"


@functools.cache
def list_measures(metric: str = "accuracy") -> Sequence[Measure]:
    """Return every measure of a run whose target metric has this name."""
    form = metric_format(metric)
    return [
        Measure("rounds_to_target", "rounds", ".0f", _rounds_to_target, "target", in_report=True, to_target=True),
        Measure("seconds_to_target", "seconds", ".1f", _to_target("seconds"), "target", in_report=True, to_target=True),
        Measure(
            "simulated_seconds_to_target",
            "simulated seconds",
            ".0f",
            _to_target("simulated_seconds"),
            "target",
            short="simulated s",
            in_report=True,
            to_target=True,
        ),
        Measure(f"best_{metric}", f"best {metric}", form, _best(metric), "target", short="best", in_report=True),
        Measure(
            f"final_{metric}",
            f"final {metric}",
            form,
            _final(metric),
        ),
        Measure(f"last_{metric}", f"{metric} at the end", form, _last(metric), "end", short=metric, in_report=True),
        Measure(
            f"last_{metric}_slow",
            "slow devices' data",
            form,
            _last(f"{metric}_slow"),
            "end",
            short="slow",
            in_report=True,
        ),
        Measure(f"last_{metric}_worst", "worst device", form, _last(f"{metric}_worst"), "end", short="worst"),
        Measure(f"closing_{metric}", f"{metric}, last fifth of the time", form, _closing(metric)),
        Measure(
            f"closing_{metric}_slow",
            "slow devices' data, last fifth of the time",
            form,
            _closing(f"{metric}_slow"),
        ),
        Measure("last_train_loss", "training loss at the end", ".3f", _last("train_loss")),
        Measure("final_train_objective", "f(w) at the end", ".3f", _final_objective, only_recorded=True),
        Measure("seconds", "seconds in all", ".1f", _total("seconds")),
        Measure(
            "seconds_per_round",
            "seconds a round",
            ".3f",
            lambda e, records: sum(r.seconds for r in records) / len(records) if records else None,
            in_report=True,
        ),
        Measure(
            "simulated_seconds",
            "simulated seconds in all",
            ".0f",
            _total("simulated_seconds"),
            "end",
            short="simulated s",
        ),
        Measure(
            "device_seconds_to_target",
            "device seconds",
            ".0f",
            _cost_to_target("work_seconds"),
            in_report=True,
            to_target=True,
        ),
        Measure(
            "megabytes_to_target", "megabytes", ".0f", _cost_to_target("megabytes"), in_report=True, to_target=True
        ),
        Measure("device_seconds", "device seconds in all", ".0f", _cost("work_seconds")),
        Measure("steps", "steps in all", ".0f", _steps),
        Measure("steps_wasted", "steps wasted", ".0f", _cost("steps_wasted")),
        Measure("bytes_down", "bytes to devices", ".0f", _cost("bytes_down")),
        Measure("bytes_up", "bytes from devices", ".0f", _cost("bytes_up")),
        Measure("approximation_error", "error", ".2f", _error("approximation_error"), "end", only_audited=True),
        Measure("best_scale_error", "best multiple", ".2f", _error("best_scale_error"), only_audited=True),
        Measure("aggregate_error", "averaged update", ".2f", _error("aggregate_error"), only_audited=True),
    ]


def summarise_run(e: Experiment, rounds: Iterable[Round]) -> dict[str, Any]:
    """Return the run in a few numbers. Names are stable: people script against them.

    Records may come one by one: their numbers are kept, and not the records.
    """
    records = [RoundNumbers(*(getattr(r, name) for name in NUMBERS)) for r in rounds]
    return {
        "method": e.method,
        "stragglers": e.policy,
        "dataset": e.subject,
        "seed": e.seed,
        "rounds": len(records),
        "metric": e.target_metric,
        "better": e.better or "higher",
        "target": e.target,
        **{m.name: m.compute(e, records) for m in list_measures(e.target_metric) if m.belongs_to(e)},
        "finished": is_finished(e, records),
        "diverged": bool(records) and records[-1].diverged,
        "versions": find_versions(),
    }


def is_finished(e: Experiment, records: Sequence[Round]) -> bool:
    """Return whether there is nothing left to do."""
    return bool(records) and is_over(e, records[-1], sum(r.simulated_seconds for r in records))


class EndWatch:
    """Says when a run is over, as its rounds come. Of all of them it keeps only how long they lasted."""

    def __init__(self, e: Experiment) -> None:
        """`e` says when a run ends: after its rounds, its time, at its target."""
        self._experiment = e
        self._last: Record | None = None
        self._simulated: list[float] = []

    def add(self, record: Record) -> None:
        """Count a round."""
        self._last = record
        self._simulated.append(record.simulated_seconds)

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do: `is_finished` of the rounds so far."""
        return self._last is not None and is_over(self._experiment, self._last, sum(self._simulated))


def is_over(e: Experiment, last: Round, simulated_seconds: float) -> bool:
    """Return whether a run ends with this round; `simulated_seconds` are those of all rounds."""
    reached = e.reaches(value_of(last, e.target_metric))
    late = e.time_limit is not None and simulated_seconds >= e.time_limit
    return last.round >= e.rounds or late or last.diverged or (e.stop_at_target and reached)


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
