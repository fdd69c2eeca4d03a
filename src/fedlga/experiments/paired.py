"""A comparison's first arm against each of the others: paired by seed, with intervals and corrected tests."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.arms import Arm
from fedlga.experiments.compare import Plan, find_metric, read_summaries
from fedlga.experiments.statistics import LEVEL, Difference, Estimate, compare_pairs, correct_for_many

Runs = Mapping[int, Mapping[str, Any]]  # summaries by seed


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
    """Return a row for each arm and measure. Holm's correction is over the arms, for each measure."""
    summaries = read_summaries(plan, out)
    rows: list[PairedRow] = []
    for measure, lower in list_judged(summaries, plan).items():
        values = {label: {seed: s.get(measure) for seed, s in runs.items()} for label, runs in summaries.items()}
        if all(v is None for by_seed in values.values() for v in by_seed.values()):
            continue  # no device is always slow, or no arm reached the target
        first, *others = plan.arms
        tests = [_compare_runs(summaries[first.label], summaries[arm.label], measure, lower=lower) for arm in others]
        ahead = correct_for_many([None if t is None else t.p for t in tests])
        behind = correct_for_many([None if t is None else t.reverse for t in tests])
        plain = [_describe(arm, measure, Estimate.of(list(values[arm.label].values()))) for arm in plan.arms]
        rows.append(plain[0])
        for row, test, p_ahead, p_behind in zip(plain[1:], tests, ahead, behind, strict=True):
            rows.append(row if test is None else _judge(row, test, p_ahead, p_behind))
    return rows


def list_judged(summaries: Mapping[str, Runs], plan: Plan) -> dict[str, bool]:
    """Return what arms are judged by, and whether a lower value is better."""
    metric = find_metric(summaries, plan.base)
    lower = any(s.get("better") == "lower" for runs in summaries.values() for s in runs.values())
    return {f"closing_{metric}": lower, f"closing_{metric}_slow": lower, "simulated_seconds_to_target": True}


def _compare_runs(ours: Runs, theirs: Runs, measure: str, *, lower: bool) -> Difference | None:
    """Test whether our runs are better than theirs on the same seeds; None if they share no seed.

    A run that did not reach the target says only that it takes longer than that run lasted, so a pair is compared up
    to there. Where rounds of one arm are longer, its runs last longer; that alone is no lead.
    """
    pairs = {seed: (ours[seed], theirs[seed]) for seed in ours if seed in theirs}
    if measure != "simulated_seconds_to_target":  # what was never measured is not late: the seed does not count
        pairs = {seed: pair for seed, pair in pairs.items() if all(run.get(measure) is not None for run in pair)}
    sign = 1.0 if lower else -1.0  # compare_pairs tests for 'below'
    a, b = (
        {seed: None if (value := pair[side].get(measure)) is None else sign * value for seed, pair in pairs.items()}
        for side in (0, 1)
    )
    limits = {
        seed: min((run["simulated_seconds"] for run in pair if run.get(measure) is None), default=math.inf)
        for seed, pair in pairs.items()
    }
    return compare_pairs(a, b, limits)


def _describe(arm: Arm, measure: str, estimate: Estimate) -> PairedRow:
    e = estimate
    return PairedRow(arm.method, arm.policy, arm.settings_text, measure, e.count, e.censored, e.mean, e.half)


def _judge(row: PairedRow, test: Difference, p_ahead: float | None, p_behind: float | None) -> PairedRow:
    ahead, behind = (p is not None and p < LEVEL for p in (p_ahead, p_behind))
    verdict = "ahead" if ahead else "behind" if behind else "level"
    leads = {"lead": -test.mean, "lead_half": test.half}
    return replace(row, **leads, p_ahead=p_ahead, p_behind=p_behind, verdict=verdict)


def write_paired(plan: Plan, out: Path) -> None:
    """Write paired.csv."""
    write_atomically(out / "paired.csv", format_csv([asdict(row) for row in compare_arms(plan, out)]))
