"""Aggregation rules, with numbers derived by hand, and how they go with completing, weights and methods' memories."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.aggregation.base import bound_lengths
from fedlga.core.aggregation.mean import Mean
from fedlga.core.aggregation.median import Median
from fedlga.core.aggregation.trimmed_mean import TrimmedMean, count_trimmed
from fedlga.core.aggregator import Aggregator
from fedlga.core.method import WeightedVector
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.keep import Keep
from fedlga.core.registry import create, names_of
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, ServerState, Update
from fedlga.experiments.presets import preset
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.feddyn import FedDyn
from fedlga.methods.fednova import FedNova
from fedlga.methods.scaffold import Scaffold


def vectors(*values: float, weights: tuple[float, ...] | None = None) -> list[WeightedVector]:
    """One-parameter updates, each with its weight."""
    weights = weights or (1.0,) * len(values)
    return [WeightedVector(torch.tensor([v]), w, w) for v, w in zip(values, weights, strict=True)]


def update(device: int, delta: tuple[float, ...], steps: int = 4, asked: int = 4, **uploads: torch.Tensor) -> Update:
    return Update(device, torch.tensor(delta), 1, steps, asked, 0.0, uploads, lr=0.5, momentum=0.0)


def aggregate(aggregator: Aggregator, *updates: Update, weights: tuple[float, ...] | None = None):
    weights = weights or (1.0,) * len(updates)
    contributions = [Contribution(u, weight=w, share=0.1) for u, w in zip(updates, weights, strict=True)]
    return aggregator.aggregate(ServerState(1, torch.zeros(len(updates[0].delta))), contributions)


@pytest.mark.parametrize(
    ("rule", "values", "weights", "expected"),
    [
        # The mean of 1, 2, 6 is 3; a rule returns it times the weights' sum, 3.
        (Mean(), (1.0, 2.0, 6.0), None, 9.0),
        # weights 1, 1, 2: 1 + 2 + 12
        (Mean(), (1.0, 2.0, 6.0), (1.0, 1.0, 2.0), 15.0),
        # the middle of 1, 2, 6 is 2
        (Median(), (1.0, 6.0, 2.0), None, 6.0),
        # of four, the mean of the two in the middle, (2 + 3) / 2, times 4
        (Median(), (1.0, 2.0, 3.0, 100.0), None, 10.0),
        # weight 3 at 1 is more than half of 5: the median is 1
        (Median(), (1.0, 2.0, 6.0), (3.0, 1.0, 1.0), 5.0),
        # half of the weight is reached exactly at 1 (2 of 4): the mean of 1 and the next, 3
        (Median(), (1.0, 3.0, 9.0), (2.0, 1.0, 1.0), 8.0),
        # trim 0.2 of five: one at each end: (2 + 3 + 4) / 3 = 3, times 5
        (TrimmedMean(trim=0.2), (1.0, 2.0, 3.0, 4.0, 100.0), None, 15.0),
        # weights of what is left, 1, 2, 1: (2 + 2 * 3 + 8) / 4 = 4, times the sum of all weights, 6
        (TrimmedMean(trim=0.2), (1.0, 2.0, 3.0, 8.0, 100.0), (1.0, 1.0, 2.0, 1.0, 1.0), 24.0),
        # 0.4 of five is two at each end: the median
        (TrimmedMean(trim=0.4), (9.0, 2.0, 3.0, 4.0, 100.0), None, 20.0),
    ],
)
def test_a_rule_gives_the_numbers_derived_by_hand(rule, values, weights, expected):
    torch.testing.assert_close(rule.sum(vectors(*values, weights=weights)), torch.tensor([expected]))


def test_a_rule_takes_the_scale_of_a_completed_update_into_account():
    # coefficient / weight is the scale: the values are 1, 2 * 2, 3, their median is 3, times the weights' sum
    scaled = [
        WeightedVector(torch.tensor([value]), 1.0, scale) for value, scale in ((1.0, 1.0), (2.0, 2.0), (3.0, 1.0))
    ]
    torch.testing.assert_close(Median().sum(scaled), torch.tensor([9.0]))


@pytest.mark.parametrize(
    ("updates", "trim", "cut"), [(10, 0.2, 2), (5, 0.2, 1), (4, 0.2, 0), (10, 0.3, 3), (3, 0.4, 1)]
)
def test_how_many_are_cut_off(updates, trim, cut):
    assert count_trimmed(updates, trim) == cut


def test_lengths_are_bounded_by_the_median_length():
    # Lengths 1, 2, 100 (2 completed from 1): the median is 2; with a bound of 3 nothing may be longer than 6.
    long = [
        WeightedVector(torch.tensor([0.6, 0.8]), 2.0, 2.0),
        WeightedVector(torch.tensor([0.6, 0.8]), 1.0, 2.0),
        WeightedVector(torch.tensor([60.0, 80.0]), 1.0, 1.0),
    ]
    bounded, factors = bound_lengths(long, 3.0)
    assert factors == pytest.approx([1, 1, 0.06])
    # 2 * (0.6, 0.8) + 2 * (0.6, 0.8) + 0.06 * (60, 80) = (2.4 + 3.6, 3.2 + 4.8)
    torch.testing.assert_close(Mean().sum(bounded), torch.tensor([6.0, 8.0]))
    assert bounded[0] is long[0]  # what is short enough is not touched


def test_a_bound_shortens_a_long_update_and_the_record_says_by_how_much():
    honest = [update(d, (1.0, 0.0)) for d in range(4)]
    outcome = aggregate(
        Aggregator(FedAvg(), Keep(), Mean(length_bound=2.0, outlier_bound=0)), *honest, update(9, (0.0, 1000.0))
    )
    # The median length is 1, so the long one counts (0, 2): the mean is (4/5, 2/5).
    torch.testing.assert_close(outcome.state.w, torch.tensor([0.8, 0.4]))
    assert outcome.bounded == pytest.approx({9: 0.002})


@pytest.mark.parametrize("bad", [3e38, -3e38])
def test_a_bound_stops_numbers_whose_squares_overflow(bad):
    honest = [update(d, (1.0, 0.0)) for d in range(4)]
    rule = Mean(length_bound=2.0, outlier_bound=0)
    outcome = aggregate(Aggregator(FedAvg(), Keep(), rule), *honest, update(9, (0.0, bad)))
    torch.testing.assert_close(outcome.state.w, torch.tensor([0.8, math.copysign(2.0, bad) / 5]))
    assert 9 in outcome.bounded


@pytest.mark.parametrize("bound", [0, 20])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_is_left_out_whatever_the_rule(bad, bound):
    honest = [update(d, (1.0, 0.0)) for d in range(4)]
    for rule in (Mean(outlier_bound=bound), Mean(length_bound=2.0, outlier_bound=bound), Median(outlier_bound=bound)):
        outcome = aggregate(Aggregator(FedAvg(), Keep(), rule), *honest, update(9, (0.0, bad)))
        torch.testing.assert_close(outcome.state.w, torch.tensor([1.0, 0.0]))
        assert outcome.refused == {9: "its numbers are not finite"}
        assert not outcome.diverged


def test_an_infinite_update_cannot_pass_the_median():
    honest = [update(d, (1.0, 2.0)) for d in range(3)]
    bad = [update(8, (float("inf"), float("-inf"))), update(9, (3e38, -3e38))]
    for rule in (Median(), TrimmedMean(trim=0.4)):
        outcome = aggregate(Aggregator(FedAvg(), Keep(), rule), *honest, *bad)
        torch.testing.assert_close(outcome.state.w, torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(trim=0.34)])
def test_completed_updates_count_as_completed(rule):
    # Device 2 did 2 of 4 steps; scale 2 makes its (1, 1) a (2, 2), which is the middle of 1, 2, 9.
    updates = [update(0, (1.0, 1.0)), update(1, (9.0, 9.0)), update(2, (1.0, 1.0), steps=2)]
    outcome = aggregate(Aggregator(FedAvg(), Complete(scale=2.0), rule), *updates)
    torch.testing.assert_close(outcome.state.w, torch.tensor([2.0, 2.0]))


def test_fednova_divides_by_steps_before_the_median_and_multiplies_by_tau_eff_after():
    # Steps 1, 2, 4: per step 4, 2, 1; the median is 2; tau_eff is 7/3.
    updates = [update(0, (4.0,), steps=1), update(1, (4.0,), steps=2), update(2, (4.0,), steps=4)]
    outcome = aggregate(Aggregator(FedNova(), Keep(), Median()), *updates)
    torch.testing.assert_close(outcome.state.w, torch.tensor([14 / 3]))


def test_scaffolds_control_is_protected_by_the_same_rule():
    # Uploads 1, 2, 1000 with share 0.1 each: the median 2 times the sum of shares, 0.3.
    updates = [update(d, (1.0,), control=torch.tensor([value])) for d, value in enumerate((1.0, 2.0, 1000.0))]
    outcome = aggregate(Aggregator(Scaffold(), Keep(), Median()), *updates)
    torch.testing.assert_close(outcome.state.memory["control"], torch.tensor([0.6]))


def test_feddyns_drift_is_protected_by_the_same_rule_and_moves_by_updates_as_sent():
    # alpha 1/2: the drift moves by -1/2 times the median of 1, 2, 1000, times the sum of shares: -1/2 * 2 * 0.3.
    # Device 1 is completed to 4 for the mean, but its drift counts the 2 that it sent. Median of 1, 4, 1000 is 4:
    # w = 4 - drift / alpha = 4 + 0.6.
    updates = [update(0, (1.0,)), update(1, (2.0,), steps=2), update(2, (1000.0,))]
    outcome = aggregate(Aggregator(FedDyn(alpha=0.5), Complete(scale=2.0), Median()), *updates)
    torch.testing.assert_close(outcome.state.memory["drift"], torch.tensor([-0.3]))
    torch.testing.assert_close(outcome.state.w, torch.tensor([4.6]))


@pytest.mark.parametrize("rule", names_of("aggregation"))
@pytest.mark.parametrize("method", names_of("method"))
def test_without_outliers_every_rule_agrees_for_equal_updates(rule, method):
    """If all devices send the same, a rule changes nothing: with every method, with unequal weights."""
    uploads = {"control": torch.tensor([0.5, -1.0])} if method == "scaffold" else {}
    updates = [update(d, (1.0, -2.0), **uploads) for d in range(5)]
    weights = (1.0, 2.0, 3.0, 1.0, 1.0)
    expected = aggregate(Aggregator(create("method", method), Keep()), *updates, weights=weights).state
    state = aggregate(
        Aggregator(create("method", method), Keep(), create("aggregation", rule)), *updates, weights=weights
    ).state
    torch.testing.assert_close(state.w, expected.w)
    for name, value in expected.memory.items():
        torch.testing.assert_close(state.memory[name], value)


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=9), st.integers(0, 8))
def test_one_arbitrary_update_cannot_take_the_median_outside_the_others(values, index):
    index %= len(values)
    others = [v for i, v in enumerate(values) if i != index]
    for extreme in (1e30, -1e30):
        changed = [extreme if i == index else v for i, v in enumerate(values)]
        result = float(Median().sum(vectors(*changed))) / len(values)
        assert min(others) - 1e-2 <= result <= max(others) + 1e-2


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"aggregation": "median", "cohort": 2},
            "aggregation: got 'median' with cohort 2; it takes a cohort of at least 3",
        ),
        ({"aggregation": "trimmed-mean", "cohort": 4}, "trimmed-mean.trim: got 0.2 with cohort 4; it cuts off nothing"),
        (
            {"aggregation": "trimmed-mean", "trim": 0.5},
            "trimmed-mean.trim: got 0.5; it takes a number above 0 and below 0.5",
        ),
        ({"aggregation": "krum"}, "aggregation: there is no 'krum'"),
        ({"length_bound": -1}, "mean.length_bound: got -1.0; it takes a number of at least 0"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(changes, line):
    with pytest.raises(BadInput) as refused:
        preset("digits").changed(changes)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_held_update_is_as_it_was_sent_after_bounding_and_completing():
    updates = [update(0, (1.0, 1.0)), update(1, (900.0, 9.0)), update(2, (1.0, 1.0), steps=2)]
    before = [replace(u, delta=u.delta.clone()) for u in updates]
    aggregate(Aggregator(FedAvg(), Complete(scale=2.0), Median(length_bound=1.5)), *updates)
    for u, b in zip(updates, before, strict=True):
        assert torch.equal(u.delta, b.delta)
        assert replace(u, delta=b.delta) == b
