"""A comparison's first arm against each of the others: paired by seed, with intervals and corrected tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.arms import Arm
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
    """Return a row for each arm and measure. Holm's correction is over the arms, for each measure."""
    summaries = read_summaries(plan, out)
    limit = max((s["simulated_seconds"] for runs in summaries.values() for s in runs.values()), default=0.0)
    rows: list[PairedRow] = []
    for measure, lower in JUDGED.items():
        values = {label: {seed: s.get(measure) for seed, s in runs.items()} for label, runs in summaries.items()}
        if all(v is None for by_seed in values.values() for v in by_seed.values()):
            continue  # no device is always slow, or no arm reached the target
        sign = 1.0 if lower else -1.0  # compare_pairs tests for 'below'
        signed = {
            label: {seed: None if v is None else sign * v for seed, v in by_seed.items()}
            for label, by_seed in values.items()
        }
        first, *others = plan.arms
        tests = [compare_pairs(signed[first.label], signed[arm.label], limit) for arm in others]
        ahead = correct_for_many([None if t is None else t.p for t in tests])
        behind = correct_for_many([None if t is None else t.reverse for t in tests])
        plain = [_describe(arm, measure, Estimate.of(list(values[arm.label].values()))) for arm in plan.arms]
        rows.append(plain[0])
        for row, test, p_ahead, p_behind in zip(plain[1:], tests, ahead, behind, strict=True):
            rows.append(row if test is None else _judge(row, test, p_ahead, p_behind))
    return rows


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
