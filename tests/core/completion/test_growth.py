"""The growth law on updates whose growth is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import digests_of, update
from fedlga.core.completion.growth import Growth, learn_growth


@settings(deadline=None, max_examples=50)
@given(st.floats(0.05, 0.95), st.lists(st.integers(1, 40), min_size=3, max_size=8, unique=True))
def test_the_growth_law_finds_a_known_exponent(exponent, steps):
    # |delta| = 3 steps^p exactly, in any direction
    deltas = [(3 * s**exponent * math.cos(s), 3 * s**exponent * math.sin(s)) for s in steps]
    updates = [update(i, d, steps=s, asked=40) for i, (d, s) in enumerate(zip(deltas, steps, strict=True))]
    digests = digests_of(updates)
    law = Growth().add_round(updates, digests, fading=0.95)
    assert law.exponent == pytest.approx(exponent, abs=1e-3)
    scale = learn_growth({}, updates, digests, 0.95).of(updates[0])
    assert scale == pytest.approx((40 / steps[0]) ** exponent, rel=5e-3)


def test_the_growth_law_fades_and_is_centred_in_each_round():
    # Round 1: steps 1 and 4, lengths 1 and 4: slope 1. Round 2: the same steps, both lengths 10: slope 0.
    # x centred is -+log 2 in both: xx = 2 log^2 2 a round, xy = 2 log^2 2 in the first and 0 in the second.
    first = [update(0, (1.0, 0.0), 1, 4), update(1, (4.0, 0.0), 4, 4)]
    second = [update(0, (10.0, 0.0), 1, 4), update(1, (10.0, 0.0), 4, 4)]
    law = Growth().add_round(first, digests_of(first), 0.5)
    assert law.exponent == pytest.approx(1.0)
    assert law.add_round(second, digests_of(second), 0.5).exponent == pytest.approx(0.5 / 1.5)


@pytest.mark.parametrize(
    ("lengths", "exponent"),
    [((1.0, 100.0), 1.0), ((5.0, 1.0), 0.0)],  # faster than steps: 1; shrinking: 0
)
def test_the_exponent_stays_between_0_and_1(lengths, exponent):
    updates = [update(0, (lengths[0], 0.0), 1, 4), update(1, (lengths[1], 0.0), 4, 4)]
    law = Growth().add_round(updates, digests_of(updates), 0.95)
    assert law.exponent == exponent


def test_zero_and_non_finite_updates_do_not_enter_the_growth_law():
    odd = [update(2, (0.0, 0.0), 2, 4), update(3, (math.nan, 1.0), 2, 4), update(4, (math.inf, 1.0), 2, 4)]
    fine = [update(0, (1.0, 0.0), 1, 4), update(1, (2.0, 0.0), 4, 4)]
    both = [*fine, *odd]
    assert Growth().add_round(both, digests_of(both), 0.95) == Growth().add_round(fine, digests_of(fine), 0.95)
    assert Growth().add_round(odd, digests_of(odd), 0.95) == Growth()


def test_without_updates_the_scale_is_1():
    assert learn_growth({}, [], {}, 0.95).of(update(0, steps=1, asked=9)) == 1.0


def test_momentum_counts_in_the_growth_law():
    # m = 1/2: one step moves 1 gradient, two move 2.5: at p = 1 the scale is 2.5, not 2.
    updates = [update(0, (1.0, 0.0), 1, 2, momentum=0.5), update(1, (2.5, 0.0), 2, 2, momentum=0.5)]
    digests = digests_of(updates)
    law = Growth().add_round(updates, digests, 0.95)
    assert law.exponent == pytest.approx(1.0)
    assert learn_growth({}, updates, digests, 0.95).of(updates[0]) == pytest.approx(2.5)
