"""Means, intervals and paired tests, by hand."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlga.experiments.statistics import (
    Estimate,
    compare_closeness,
    compare_pairs,
    correct_for_many,
    find_leaders,
)


def test_an_interval_by_hand():
    """1, 2, 4: mean 7/3, deviation sqrt(7/3), t of two degrees of freedom 4.3027."""
    result = Estimate.of([1.0, 2.0, 4.0])
    assert result.mean == pytest.approx(7 / 3)
    assert result.half == pytest.approx(4.30265 * math.sqrt(7 / 3) / math.sqrt(3), rel=1e-4)
    assert result.text(".1f") == "2.3 ± 3.8"


def test_censored_runs_have_no_mean():
    result = Estimate.of([100.0, None, 120.0])
    assert result.mean is None
    assert result.text(limit=400) == "2 of 3 within 400"
    assert Estimate.of([]).text() == "-"
    assert Estimate.of([5.0]).text() == "5"


def test_five_seeds_can_show_a_claim_and_four_cannot():
    """All differences of one sign: of 2^n ways to flip them, one is as extreme."""
    low, high = {s: float(s) for s in range(5)}, {s: s + 1.0 + s / 10 for s in range(5)}
    five = compare_pairs(low, high)
    assert five is not None
    assert five.p == pytest.approx(1 / 32)
    assert (five.shown, five.refuted, five.verdict) == (True, False, "holds")
    back = compare_pairs(high, low)
    assert back is not None
    assert back.verdict == "the opposite holds"
    four = compare_pairs({s: low[s] for s in range(4)}, high)
    assert four is not None
    assert four.p == pytest.approx(1 / 16)
    assert four.verdict == "not shown"


def test_a_mixed_difference_by_hand():
    """Gaps -3, -1, 2: sums of all flips are +-6, +-4, +-2, 0, 0 twice over; of 8, three are at most -2."""
    result = compare_pairs({0: 0.0, 1: 0.0, 2: 2.0}, {0: 3.0, 1: 1.0, 2: 0.0})
    sums = [a * 3 + b * 1 + c * 2 for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]
    assert result is not None
    assert result.p == pytest.approx(sum(s <= -2 for s in sums) / 8)


def test_a_censored_run_counts_with_the_rounds_it_had():
    result = compare_pairs({0: 50.0, 1: 60.0}, {0: None, 1: 90.0}, limit=200)
    assert result is not None
    assert result.mean == pytest.approx((-150 - 30) / 2)
    assert result.censored == 1
    assert "1 not in time" in result.text()


def test_a_seed_that_never_arrived_speaks_as_loudly_as_any():
    """Five seeds ten ahead, and one on which A never arrives: the gap that was result is 5, but it may be thousands."""
    a, b = dict.fromkeys(range(5), 10.0), dict.fromkeys(range(5), 20.0)
    result = compare_pairs({**a, 5: None}, {**b, 5: 195.0}, limit=200)
    assert result is not None
    assert result.mean == pytest.approx((-50 + 5) / 6)
    sums = [sum(10 * (1 if flip >> bit & 1 else -1) for bit in range(6)) for flip in range(64)]
    assert result.p == pytest.approx(sum(s <= -40 for s in sums) / 64)  # five at -10 and one at +10
    assert not result.shown


def test_values_beyond_what_both_were_watched_for_are_equal():
    result = compare_pairs({0: 150.0}, {0: None}, limit={0: 100.0})
    assert result is not None
    assert (result.mean, result.censored) == (0.0, 2)


def test_seeds_that_only_one_has_do_not_count():
    result = compare_pairs({0: 1.0, 7: 100.0}, {0: 2.0, 3: 5.0})
    assert result is not None
    assert result.count == 1
    assert compare_pairs({0: 1.0}, {1: 1.0}) is None


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=6))
def test_chance_never_goes_both_ways(gaps):
    a, b = dict(enumerate(gaps)), dict.fromkeys(range(len(gaps)), 0.0)
    result = compare_pairs(a, b)
    assert result is not None
    assert 0 < result.p <= 1
    assert not (result.shown and result.refuted)


def test_holm_by_hand():
    """In order 0.005, 0.01, 0.03, 0.04: times 4, 3, 2 and 1 they are 0.02, 0.03, 0.06 and 0.04.

    None may become smaller than the one before it, so the last is 0.06 as well.
    """
    assert correct_for_many([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_ends_at_one_and_counts_tests_only():
    assert correct_for_many([0.6, 0.5]) == [1.0, 1.0]
    assert correct_for_many([0.03]) == [0.03]
    assert correct_for_many([None, 0.01, None, 0.04]) == [None, 0.02, None, 0.04]
    assert correct_for_many([None, None]) == [None, None]
    assert correct_for_many([]) == []


def test_holm_of_equal_values():
    """The smallest is multiplied by 3, and the others are not smaller than it."""
    assert correct_for_many([0.01, 0.01, 0.01]) == pytest.approx([0.03, 0.03, 0.03])


@given(st.lists(st.none() | st.floats(0, 1), max_size=8))
def test_corrected_values_keep_their_order_and_never_become_smaller(values):
    corrected = correct_for_many(values)
    assert [p is None for p in corrected] == [p is None for p in values]
    both = sorted((p, q) for p, q in zip(values, corrected, strict=True) if p is not None and q is not None)
    assert all(p <= q <= min(1.0, len(both) * p) for p, q in both), "between the value itself and Bonferroni's"
    assert all(before[1] <= after[1] for before, after in itertools.pairwise(both))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_the_tests_does_not_matter(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    corrected = correct_for_many(values)
    assert correct_for_many([values[i] for i in order]) == [corrected[i] for i in order]


def test_who_leads_by_hand():
    """Intervals 9 to 13, 12 to 16 and 20 to 24: the first two overlap, the third is behind both."""
    a, b, c = (Estimate(mean, 2.0, 5) for mean in (11.0, 14.0, 22.0))
    assert find_leaders({"c": c, "b": b, "a": a}, lower=True) == ["a", "b"]
    assert find_leaders({"c": c, "b": b, "a": a}, lower=False) == ["c"]
    assert find_leaders({"a": a, "same": a}, lower=True) == ["a", "same"], "equals are both named"
    censored = Estimate.of([5.0, None, 6.0])
    assert find_leaders({"a": a, "censored": censored}, lower=True) == ["a"]
    assert find_leaders({"censored": censored}, lower=True) == []


def test_nobody_leads_with_fewer_than_three_seeds():
    assert find_leaders({"a": Estimate.of([1.0, 1.0]), "b": Estimate.of([99.0, 98.0])}, lower=True) == []


def test_close_is_shown_from_both_sides():
    """Of 100 rounds, 10 may separate what is called close. Differences of +4 and -4: within, on all five seeds.

    A - (B + 10) is -14 or -6, and B - (A + 10) is -6 or -14: always below zero, so both tests have p = 1/32.
    """
    a, b = dict.fromkeys(range(5), 100.0), {0: 96.0, 1: 104.0, 2: 96.0, 3: 104.0, 4: 96.0}
    close = compare_closeness(a, b, 0.1, 400)
    assert close is not None
    assert (close.mean, close.p, close.shown, close.refuted) == (pytest.approx(0.8), 1 / 32, True, False)


def test_what_is_far_apart_is_not_close():
    """FedDyn's 40 rounds against 100: 60 fewer, where 10 were allowed."""
    a, b = dict.fromkeys(range(5), 100.0), dict.fromkeys(range(5), 40.0)
    for first, second in ((a, b), (b, a)):
        close = compare_closeness(first, second, 0.1, 400)
        assert close is not None
        assert (close.shown, close.refuted, close.reverse) == (False, True, 1 / 32)


def test_nothing_is_close_to_a_run_that_never_arrived():
    a, b = dict.fromkeys(range(5), 100.0), dict.fromkeys(range(5), None)
    close = compare_closeness(a, b, 0.1, 100)
    assert close is not None
    assert not close.shown
    assert compare_closeness(a, {}, 0.1, 100) is None
