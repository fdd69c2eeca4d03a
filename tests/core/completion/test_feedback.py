"""The law `feedback` on updates whose cosines are known, and what a device can do to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import digests_of, play, quadratics, update
from fedlga.core.aggregator import Aggregator
from fedlga.core.completion.feedback import LONGEST, STEP, learn_feedback, mean_bounded, measure_cosine
from fedlga.core.completion.scales import Scales
from fedlga.core.optimizers.adaptive import Adagrad, Adam
from fedlga.core.optimizers.momentum import Momentum
from fedlga.core.optimizers.sgd import Sgd
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.keep import Keep
from fedlga.core.types import Update
from fedlga.methods.fedavg import FedAvg

# Device 0 does 1 of 4 steps and moves by 1, device 1 does all 4 and moves by 2: the growth law's slope is
# log 2 / log 4 = 1/2. So q starts at 1/2, and device 0 is scaled by 4^(1/2) = 2.
FIRST = [update(0, (1.0, 0.0), steps=1, asked=4), update(1, (0.0, 2.0), steps=4, asked=4)]


def learn(memory: dict, updates: Sequence[Update]) -> tuple[Scales, dict]:
    scales = learn_feedback(memory, updates, digests_of(updates))
    return scales, {**memory, **scales.memory}


def test_the_exponent_starts_at_the_growth_laws():
    scales, memory = learn({}, FIRST)
    assert (scales.growth, scales.agreement) == (pytest.approx(0.5), None)
    assert scales.of(FIRST[0]) == pytest.approx(2.0)
    # D: the mean over stragglers of scale * ln(ratio) * delta = 2 ln 4 (1, 0)
    assert memory["pushed"].tolist() == pytest.approx([2 * math.log(4), 0.0])


@pytest.mark.parametrize(
    ("slow", "fast", "cosine"),
    [
        # G is the mean of delta / steps. (3, 0) / 1 and (4, 0) / 4: along D.
        ((3.0, 0.0), (4.0, 0.0), 1.0),
        # (-1, 0) and (0, 4) / 4 = (0, 1): their mean is at 135 degrees to D.
        ((-1.0, 0.0), (0.0, 4.0), -math.sqrt(0.5)),
        # (0, 1) and (0, 1): across.
        ((0.0, 1.0), (0.0, 4.0), 0.0),
        # (1, 0) and (-8, 0) / 4 = (-2, 0): the complete device outvotes the slow one, though its own delta is 8 long.
        ((1.0, 0.0), (-8.0, 0.0), -1.0),
    ],
)
def test_the_exponent_follows_the_next_rounds_descent(slow, fast, cosine):
    _, memory = learn({}, FIRST)
    second = [update(0, slow, steps=1, asked=4), update(1, fast, steps=4, asked=4)]
    scales, _ = learn(memory, second)
    assert scales.agreement == pytest.approx(cosine)
    assert scales.growth == pytest.approx(0.5 + STEP * cosine)
    assert scales.of(second[0]) == pytest.approx(4 ** (0.5 + STEP * cosine))


def test_each_device_is_scaled_by_its_own_work():
    _, memory = learn({}, FIRST)
    updates = [update(0, (0.0, 1.0), steps=2, asked=8), update(1, (0.0, 1.0), 1, 9), update(2, (0.0, 1.0), 4, 4)]
    scales, _ = learn(memory, updates)
    assert scales.growth == pytest.approx(0.5), "all across D: nothing changes"
    assert [scales.of(u) for u in updates[:2]] == pytest.approx([2.0, 3.0])


def test_before_the_first_straggler_nothing_is_known():
    finished = [update(1, (1.0, 0.0), 4, 4)]
    scales, memory = learn({}, finished)
    assert (scales.growth, memory) == (None, {})


def test_after_a_round_without_stragglers_there_is_nothing_to_compare_with():
    _, memory = learn({}, FIRST)
    scales, memory = learn(memory, [update(1, (4.0, 0.0), 4, 4)])
    assert (scales.growth, scales.agreement) == pytest.approx((0.5 + STEP, 1.0)), "the round before did push"
    scales, memory = learn(memory, FIRST)
    assert (scales.growth, scales.agreement) == (pytest.approx(0.5 + STEP), None)
    assert learn(memory, FIRST)[0].agreement is not None


def test_a_round_without_complete_devices_completes_nothing_so_it_teaches_nothing():
    _, memory = learn({}, FIRST)
    _, memory = learn(memory, [update(0, (0.0, 1.0), 1, 4)])
    scales, _ = learn(memory, FIRST)
    assert scales.agreement is None


def test_updates_that_are_not_finite_or_zero_are_left_out():
    _, memory = learn({}, FIRST)
    good = [update(0, (3.0, 0.0), 1, 4), update(1, (4.0, 0.0), 4, 4)]
    bad = [update(2, (math.nan, 1.0), 1, 4), update(3, (math.inf, 0.0), 4, 4), update(4, (0.0, 0.0), 1, 4)]
    assert learn(memory, [*good, *bad])[0].growth == learn(memory, good)[0].growth
    assert learn(memory, bad)[0].growth == pytest.approx(0.5)
    assert learn({}, bad)[0].growth is None


def test_one_device_cannot_outvote_the_others_by_length():
    # Nine devices move by (1, 0), one claims (-1e10, 0): it counts LONGEST = 3 times the median, 1. (9 - 3) / 10 > 0.
    _, memory = learn({}, FIRST)
    honest = [update(i, (1.0, 0.0), 1, 4) for i in range(9)]
    updates = [*honest, update(9, (-1e10, 0.0), 1, 4)]
    assert learn(memory, updates)[0].growth == pytest.approx(0.5 + STEP)
    digests = digests_of(updates)
    assert mean_bounded(updates, digests, [1.0] * 10).tolist() == pytest.approx([(9 - LONGEST) / 10, 0.0])


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.floats(-(2.0**60), 2.0**60, width=32), st.floats(-(2.0**60), 2.0**60, width=32), st.integers(1, 6)
            ),
            max_size=4,
        ),
        min_size=2,
        max_size=6,
    )
)
def test_whatever_devices_send_the_exponent_moves_little_and_stays_in_bounds(rounds):
    memory, before = {}, None
    for sent in rounds:
        updates = [update(i, (x, y), steps=s, asked=6) for i, (x, y, s) in enumerate(sent)]
        scales, memory = learn(memory, updates)
        if scales.growth is not None:
            assert 0 <= scales.growth <= 1
            assert before is None or abs(scales.growth - before) <= STEP + 1e-12
            before = scales.growth
        assert all(1 <= scales.of(u) <= 6 for u in updates)


def test_the_cosine_of_a_zero_vector_is_zero():
    assert measure_cosine(torch.zeros(2), torch.ones(2)) == 0.0


def test_completing_removes_the_bias_that_keeping_has():
    """Two quadratics, centres at (1, 0) and (0, 1), rate 0.02: device 0 does 1 of 5 steps, device 1 all.

    The optimum of the mean is (1/2, 1/2). As sent, device 0's pull is about a fifth of device 1's, so keeping ends near
    (1/6, 5/6), 0.47 away. With q near 1 the pulls are about equal.
    """
    setting = {"centres": [(1.0, 0.0), (0.0, 1.0)], "script": [[1, 5]], "asked": 5, "lr": 0.02}
    ends = {}
    for policy in (Keep(), Complete(scale="feedback")):
        state, records = play(*quadratics(FedAvg(), **setting, policy=policy), 400)
        ends[type(policy)] = float(torch.dist(state.w, torch.tensor([0.5, 0.5])))
    assert ends[Keep] == pytest.approx(math.sqrt(2) / 3, abs=0.02)
    assert ends[Complete] < 0.1 * ends[Keep]
    assert records[-1].growth == pytest.approx(1.0, abs=0.1)


def test_with_momentum_earlier_pushes_go_on_pushing():
    # Round 1 pushes along (1, 0), by 2 ln 4. In round 2 the straggler moves along (0, 1), all across: q stays 1/2, its
    # push is (0, 2 ln 4), and half of round 1's is repeated: (1, 2) ln 4.
    second = [update(0, (0.0, 1.0), 1, 4), update(1, (0.0, 4.0), 4, 4)]
    memory = learn_feedback({}, FIRST, digests_of(FIRST), carry=0.5).memory
    memory = learn_feedback(memory, second, digests_of(second), carry=0.5).memory
    assert memory["pushed"].tolist() == pytest.approx([math.log(4), 2 * math.log(4)])
    # A round without stragglers pushes no further: half of what was pushed goes on.
    third = [update(1, (1.0, 0.0), 4, 4)]
    memory = {**memory, **learn_feedback(memory, third, digests_of(third), carry=0.5).memory}
    assert memory["pushed"].tolist() == pytest.approx([math.log(4) / 2, math.log(4)])


@pytest.mark.parametrize(
    ("optimizer", "carry"), [(Sgd(), 0.0), (Momentum(beta=0.8), 0.8), (Adam(), 0.9), (Adagrad(), 0.0)]
)
def test_the_aggregator_tells_the_policy_what_its_optimizer_repeats(optimizer, carry):
    policy = Aggregator(FedAvg(), Complete(), optimizer=optimizer).policy
    assert policy == Complete(carry=carry)
    assert Aggregator(FedAvg(), Keep(), optimizer=optimizer).policy == Keep()
