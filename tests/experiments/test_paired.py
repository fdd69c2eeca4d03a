"""The first arm against each of the others: leads, tests and verdicts by hand, from summaries that are written here."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest

from fedlga.experiments.arms import Arm
from fedlga.experiments.compare import Plan, run_folder
from fedlga.experiments.paired import PairedRow, compare_arms, write_paired
from fedlga.experiments.presets import preset
from run_folders import write_finished

ARMS = [Arm("fedavg", "complete"), Arm("fedavg", "keep"), Arm("fedprox", "keep", {"mu": 0.5})]
T_OF_SIX = 2.570582  # Student's t, 97.5 % quantile with five degrees of freedom


def write_runs(out: Path, *by_arm: dict[int, dict[str, Any]]) -> Plan:
    """Write summaries of the first arms, by seed; return the comparison."""
    arms = ARMS[: len(by_arm)]
    for arm, runs in zip(arms, by_arm, strict=True):
        for seed, summary in runs.items():
            write_finished(run_folder(out, arm, seed), seed=seed, **summary)
    seeds = sorted({seed for runs in by_arm for seed in runs})
    return Plan(preset("digits"), {}, [], [], seeds, more_arms=arms)


def accuracies(*values: float | None, measure: str = "closing_accuracy") -> dict[int, dict[str, Any]]:
    return {seed: {measure: value} for seed, value in enumerate(values)}


def times(*pairs: tuple[float | None, float]) -> dict[int, dict[str, Any]]:
    """Return runs that reached the target after so many simulated seconds, and lasted so many."""
    return {
        seed: {"simulated_seconds_to_target": reached, "simulated_seconds": lasted}
        for seed, (reached, lasted) in enumerate(pairs)
    }


def test_leads_and_verdicts_by_hand(tmp_path):
    """The first arm is ahead of the second by 1/8 and 1/4 in turn, and behind the third by the same, on six seeds.

    Of the 2^6 ways to flip the signs of six equal signs one is as extreme: p = 1/64. There are two tests, so Holm
    makes it 2/64, which is below 0.05. The gaps deviate by 1/16 from their mean, 3/16: the standard deviation is
    1/16 sqrt(6/5), and half of the interval is t / sqrt(6) of it.
    """
    plan = write_runs(
        tmp_path,
        accuracies(*[0.5] * 6),
        accuracies(*[0.375, 0.25] * 3),
        accuracies(*[0.625, 0.75] * 3),
    )
    half = pytest.approx(T_OF_SIX / 16 / math.sqrt(5), rel=1e-5)
    common = {"measure": "closing_accuracy", "seeds": 6, "censored": 0}
    assert compare_arms(plan, tmp_path) == [
        PairedRow("fedavg", "complete", "", mean=0.5, half=0.0, **common),
        PairedRow(
            *("fedavg", "keep", ""),
            **common,
            mean=0.3125,
            half=half,
            lead=0.1875,
            lead_half=half,
            p_ahead=pytest.approx(2 / 64),
            p_behind=1.0,
            verdict="ahead",
        ),
        PairedRow(
            *("fedprox", "keep", "mu=0.5"),
            **common,
            mean=0.6875,
            half=half,
            lead=-0.1875,
            lead_half=half,
            p_ahead=1.0,
            p_behind=pytest.approx(2 / 64),
            verdict="behind",
        ),
    ]


def test_many_tests_need_more_seeds_than_one(tmp_path):
    """Five seeds of one sign: p = 1/32 shows a lead over one arm, but not over two (2/32 = 0.0625)."""
    ahead, behind = accuracies(*[0.5] * 5), accuracies(*[0.25] * 5)
    (_, alone) = compare_arms(write_runs(tmp_path / "one", ahead, behind), tmp_path / "one")
    assert (alone.p_ahead, alone.verdict) == (pytest.approx(1 / 32), "ahead")
    (_, *both) = compare_arms(write_runs(tmp_path / "two", ahead, behind, behind), tmp_path / "two")
    assert [(row.p_ahead, row.verdict) for row in both] == [(pytest.approx(2 / 32), "level")] * 2


def test_the_correction_is_over_the_arms_of_one_measure(tmp_path):
    """Accuracy and accuracy on slow data are the same here: twice as many tests would make 4/64 of 1/64."""
    first, others = [0.5] * 6, [0.25] * 6
    runs = [
        {seed: {"closing_accuracy": v, "closing_accuracy_slow": v} for seed, v in enumerate(values)}
        for values in (first, others, others)
    ]
    rows = compare_arms(write_runs(tmp_path, *runs), tmp_path)
    assert [row.measure for row in rows] == ["closing_accuracy"] * 3 + ["closing_accuracy_slow"] * 3
    assert [row.p_ahead for row in rows if row.verdict] == [pytest.approx(2 / 64)] * 4


def test_sooner_is_better_and_censored_times_count_as_long_as_the_run_lasted(tmp_path):
    """Seed by seed: 20 s ahead; at least 50 s ahead; both too late; not known; 40 s ahead.

    On the fourth seed the first arm needs 300 s, and the other was watched for 150 s only. On the fifth the runs ended
    at the target. The lead is 110 / 5 = 22 s. Three gaps are not zero, all of one sign: p = 1/8.
    """
    plan = write_runs(
        tmp_path,
        times((100, 150), (100, 150), (None, 150), (300, 450), (100, 100)),
        times((120, 150), (None, 150), (None, 150), (None, 150), (140, 140)),
    )
    first, other = compare_arms(plan, tmp_path)
    assert (first.measure, first.seeds, first.censored, first.mean) == ("simulated_seconds_to_target", 5, 1, None)
    assert (other.seeds, other.censored, other.mean, other.half) == (5, 3, None, None)
    assert other.lead == pytest.approx(22)
    assert (other.p_ahead, other.p_behind, other.verdict) == (pytest.approx(1 / 8), 1.0, "level")


def test_a_run_that_never_arrives_counts_as_much_as_the_largest_gap(tmp_path):
    """Five seeds 10 s ahead; on the sixth the first arm never arrives, 5 s after the other did when it ended.

    In the test that seed counts 10 s against the first arm: sums of six times 10 with random signs are at most -40 in
    1 + 6 of 64 cases.
    """
    first = times(*[(10, 200)] * 5, (None, 200))
    other = times(*[(20, 200)] * 5, (195, 200))
    (_, row) = compare_arms(write_runs(tmp_path, first, other), tmp_path)
    assert row.lead == pytest.approx((50 - 5) / 6)
    assert (row.p_ahead, row.verdict) == (pytest.approx(7 / 64), "level")


def test_an_arm_that_is_always_sooner_is_ahead(tmp_path):
    """Six seeds, one other arm: 1/64."""
    plan = write_runs(tmp_path, times(*[(50, 100)] * 6), times(*[(None, 100)] * 6))
    first, other = compare_arms(plan, tmp_path)
    assert (first.mean, first.half, first.verdict) == (50, 0.0, "")
    assert (other.lead, other.p_ahead, other.verdict) == (50, pytest.approx(1 / 64), "ahead")
    plan = write_runs(tmp_path / "turned", times(*[(None, 100)] * 6), times(*[(50, 100)] * 6))
    _, other = compare_arms(plan, tmp_path / "turned")
    assert (other.lead, other.p_behind, other.verdict) == (-50, pytest.approx(1 / 64), "behind")


def test_only_seeds_that_both_have_are_compared(tmp_path):
    """The others are in the means: the second arm's seed 7 changes its mean, but not the lead."""
    plan = write_runs(tmp_path, accuracies(0.5, 0.5), accuracies(0.25, 0.25) | {7: {"closing_accuracy": 1.0}})
    _, other = compare_arms(plan, tmp_path)
    assert (other.seeds, other.mean, other.lead) == (3, 0.5, 0.25)
    assert other.p_ahead == pytest.approx(1 / 4)


def test_an_accuracy_that_was_never_measured_is_no_accuracy(tmp_path):
    """It is not a late one: the seed does not count."""
    plan = write_runs(tmp_path, accuracies(0.5, 0.5, 0.5), accuracies(0.25, None, 0.25))
    _, other = compare_arms(plan, tmp_path)
    assert (other.censored, other.mean, other.lead) == (1, None, 0.25)
    assert other.p_ahead == pytest.approx(1 / 4)


def test_without_a_seed_in_common_there_is_no_verdict(tmp_path):
    plan = write_runs(tmp_path, accuracies(0.5), {}, {3: {"closing_accuracy": 0.25}})
    rows = compare_arms(plan, tmp_path)
    assert [(row.seeds, row.mean, row.lead, row.p_ahead, row.p_behind, row.verdict) for row in rows] == [
        (1, 0.5, None, None, None, ""),
        (0, None, None, None, None, ""),
        (1, 0.25, None, None, None, ""),
    ]


def test_what_no_arm_has_is_left_out(tmp_path):
    plan = write_runs(tmp_path, times((None, 9)), times((None, 9)))
    assert compare_arms(plan, tmp_path) == []
    assert compare_arms(plan, tmp_path / "nothing here") == []


def test_the_table_as_a_file(tmp_path):
    plan = write_runs(tmp_path, accuracies(0.5, 0.5), accuracies(0.25, 0.25), accuracies(0.75, 0.75))
    write_paired(plan, tmp_path)
    rows = list(csv.DictReader((tmp_path / "paired.csv").read_text().splitlines()))
    assert [(row["settings"], row["mean"], row["lead"], row["verdict"]) for row in rows] == [
        ("", "0.5", "", ""),
        ("", "0.25", "0.25", "level"),
        ("mu=0.5", "0.75", "-0.25", "level"),
    ]
