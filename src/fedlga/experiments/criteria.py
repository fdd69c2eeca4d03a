"""What makes a setting the best: the costs that a search makes small."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import is_percentage

NO_TARGET = "--by: got 'time', and the experiment has no target; set one with --target"


@dataclass(frozen=True)
class Criterion:
    """What makes a setting the best: a cost to make small."""

    name: str
    meaning: str  # with {metric} for the name of the target metric
    tie: float  # points whose mean cost is this close to the best are tied: the one with the least spread is chosen
    margin: float  # after each seed, points that are further behind the best than this leave the race
    relative: bool  # tie and margin are shares of the best cost, and no costs themselves

    def describe(self, metric: str) -> str:
        """Return what a setting is chosen by, in words."""
        return self.meaning.format(metric=metric)

    def for_metric(self, metric: str) -> Criterion:
        """Return the criterion with a tie and a margin that fit the metric: fixed ones are for percentages only."""
        if self.relative or is_percentage(metric):
            return self
        return replace(self, tie=CRITERIA["metric"].tie, margin=CRITERIA["metric"].margin, relative=True)

    def cost(self, e: Experiment, summary: Mapping[str, Any]) -> float:
        """Return the cost of one run: infinite if it diverged, or if what it is judged by is no number."""
        metric = str(summary.get("metric", "accuracy"))
        if summary["diverged"]:
            return math.inf
        if self.name == "time":
            return _time_to_target(metric, summary, summary.get("target", e.target))
        value = summary[f"closing_{metric}_slow" if self.name == "slow" else f"closing_{metric}"]
        if value is None and self.name == "slow":
            raise refuse_slow(metric, f"{metric} is not known for the devices that are always slow")
        if value is None or not math.isfinite(value):
            return math.inf
        if summary.get("better") == "lower":
            return value
        return 1 - value if is_percentage(metric) else -value

    def limit(self, costs: Collection[float], room: float) -> float:
        """Return the highest cost that is at most `room` above the best of the costs.

        A share of the best needs a best above zero. Where there is none, as for an R² that is around zero, it is a
        share of the distance between the best and the median; or between the best and zero, if that is further.
        """
        best = min(costs)
        if not self.relative:
            return best + room
        if best > 0:
            return best + room * best
        median = statistics.median(cost for cost in costs if math.isfinite(cost))
        return best + room * (max(median, 0.0) - best)


def _time_to_target(metric: str, summary: Mapping[str, Any], target: float | None) -> float:
    """Return the simulated seconds to the target.

    A run that never reached it counts as later than every run that did; and the later, the further it was away.
    """
    if target is None:
        raise BadInput(NO_TARGET)
    seconds, best = summary["simulated_seconds_to_target"], summary[f"best_{metric}"]
    if seconds is not None:
        return seconds
    missing = abs(target - best) if best is not None and math.isfinite(best) else abs(target)
    return summary["simulated_seconds"] * (1 + (missing if is_percentage(metric) else missing / (abs(target) or 1.0)))


CRITERIA = {
    c.name: c
    for c in (
        Criterion("accuracy", "mean {metric} over the last fifth of the simulated time", 0.002, 0.03, relative=False),
        Criterion("metric", "mean {metric} over the last fifth of the simulated time", 0.002, 0.1, relative=True),
        Criterion(
            "slow",
            "mean {metric} over the last fifth of the simulated time, on data like that of the always slow devices",
            0.002,
            0.03,
            relative=False,
        ),
        Criterion("time", "simulated seconds to the target", 0.02, 0.5, relative=True),
    )
}


def find_criterion(by: str | None, metric: str | None) -> Criterion:
    """Return the criterion that --by names; any other name can only be the target metric's: see `check_by`.

    `metric` is the target metric, or None if only the data of a task will tell.
    """
    by = by or ("accuracy" if metric == "accuracy" else "metric")
    return CRITERIA.get(by, CRITERIA["metric"])


def check_by(by: str, metric: str, metrics: Collection[str]) -> None:
    """Raise BadInput if --by names neither a criterion nor the target metric; `metrics` are all that there are."""
    if by in (metric, "metric", "slow", "time"):
        return
    other = f", or {by} with --set metric={by}" if by in metrics else ""
    raise BadInput(f"--by: got {by!r}, and the target metric is {metric}; it takes {metric}, slow or time{other}")


def refuse_slow(metric: str, why: str = "no device of this fleet is always slow") -> BadInput:
    """Return the error for --by slow where nothing is known about slow devices."""
    return BadInput(f"--by: got 'slow', and {why}; it takes {metric} or time")
