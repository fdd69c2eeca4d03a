"""A comparison's first arm against each of the others: paired by seed, with intervals and corrected tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.compare import Plan, read_summaries
from fedlga.experiments.statistics import LEVEL, Difference, Estimate, compare_pairs, correct_for_many

# What arms are judged by, and whether a lower value is better.
JUDGED = {"closing_accuracy": False, "closing_accuracy_slow": False, "simulated_seconds_to_target": True}


@dataclass(frozen=True)
class PairedRow:
    """One measure of one arm: its mean, and how the first arm compares with it on the same seeds."""

    method: str
    stragglers: str
    settings: str
    measure: str
    seeds: int
    censored: int  # runs that did not reach the target
    mean: float | None
    half: float | None  # of the 95 % interval of the mean
    lead: float | None = None  # the first arm's mean advantage over this one; positive: the first is better
    lead_half: float | None = None
    p_ahead: float | None = None  # chance of such a lead if there were none, after Holm's correction
    p_behind: float | None = None
    verdict: str = ""  # of the first arm against this one: ahead, behind or level


def compare_arms(plan: Plan, out: Path) -> list[PairedRow]:
    """Return a row for each arm and measure.

    Holm's correction is over all arms and measures of the comparison: every test that this table makes.
    """
    summaries = read_summaries(plan, out)
    limit = max((s["simulated_seconds"] for runs in summaries.values() for s in runs.values()), default=0.0)
    first = plan.arms[0]
    rows: list[dict[str, Any]] = []
    tests: list[Difference | None] = []
    for measure, lower in JUDGED.items():
        values = {label: {seed: s.get(measure) for seed, s in runs.items()} for label, runs in summaries.items()}
        if all(v is None for by_seed in values.values() for v in by_seed.values()):
            continue  # no device is always slow, or no arm reached the target
        for arm in plan.arms:
            mine = values[arm.label]
            estimate = Estimate.of(list(mine.values()))
            rows.append(
                {"method": arm.method, "stragglers": arm.policy, "settings": arm.settings_text, "measure": measure}
                | {"seeds": estimate.count, "censored": estimate.censored}
                | {"mean": estimate.mean, "half": estimate.half}
            )
            sign = 1.0 if lower else -1.0  # compare_pairs tests for 'below'
            ours, theirs = (
                {seed: None if v is None else sign * v for seed, v in values[label].items()}
                for label in (first.label, arm.label)
            )
            tests.append(None if arm == first else compare_pairs(ours, theirs, limit))
    ahead = correct_for_many([None if t is None else t.p for t in tests])
    behind = correct_for_many([None if t is None else t.reverse for t in tests])
    return [
        PairedRow(**row)
        if test is None
        else PairedRow(
            **row,
            lead=-test.mean,
            lead_half=test.half,
            p_ahead=p,
            p_behind=reverse,
            verdict="ahead"
            if p is not None and p < LEVEL
            else "behind"
            if reverse is not None and reverse < LEVEL
            else "level",
        )
        for row, test, p, reverse in zip(rows, tests, ahead, behind, strict=True)
    ]


def write_paired(plan: Plan, out: Path) -> None:
    """Write paired.csv."""
    write_atomically(out / "paired.csv", format_csv([asdict(row) for row in compare_arms(plan, out)]))
