"""The law `trusted` on updates whose growth, noise or mixture of both is known, and its limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import digests_of, update
from fedlga.core.completion import trusted
from fedlga.core.completion.growth import Growth
from fedlga.core.completion.trusted import learn_trusted
from fedlga.core.types import Update

SIZE, ASKED = 2000, 10


def sent(device: int, delta: np.ndarray, steps: int) -> Update:
    return replace(update(device, [0.0], steps, ASKED), delta=torch.from_numpy(delta.astype(np.float32)))


def scale_in_last_round(
    signal: float, noise: float, power: float = 1.0, rounds: int = 60, devices: int = 12, repeat: bool = True
):
    """Make updates in which each device has its own direction (signal * steps^power) plus a random walk (noise).

    Return the law's scale, in the last round, of a straggler with 4 of 10 steps, and the mean of its best multiples.
    """
    rng = np.random.default_rng(0)
    ways = rng.standard_normal((devices if repeat else devices * rounds, SIZE)) / math.sqrt(SIZE)
    memory, best, scale = {}, [], 1.0
    for round in range(rounds):
        updates = []
        for slot in range(devices):
            device = slot if repeat else round * devices + slot
            steps = (4, 6, 8, 10)[(slot + round) % 4]
            walk = rng.standard_normal((ASKED, SIZE)) / math.sqrt(SIZE)
            delta = signal * steps**power * ways[device] + noise * walk[:steps].sum(0)
            full = signal * ASKED**power * ways[device] + noise * walk.sum(0)
            updates.append(sent(device, delta, steps))
            if steps == 4:
                best.append(float(delta @ full) / float(delta @ delta))
        scales = learn_trusted(memory, updates, digests_of(updates), 0.95)
        memory = {**memory, **scales.memory}
        scale = next(scales.of(u) for u in updates if u.steps == 4)
    return scale, float(np.mean(best))


@pytest.mark.parametrize("power", [1.0, 0.7, 0.4])
def test_pure_signal_is_completed_by_its_own_exponent(power):
    scale, best = scale_in_last_round(signal=1.0, noise=0.0, power=power)
    assert best == pytest.approx(2.5**power, rel=1e-3)
    assert scale == pytest.approx(best, rel=0.02)


def test_pure_noise_is_not_scaled():
    # |delta| grows like sqrt(steps), which the growth law takes for growth: its scale would be 2.5^0.5 = 1.6.
    scale, best = scale_in_last_round(signal=0.0, noise=1.0)
    assert best == pytest.approx(1.0, abs=0.05)
    assert scale == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.5), (1.0, 1.0), (0.5, 1.0), (0.25, 1.0)])
def test_a_mixture_is_completed_in_part_and_never_too_much(signal, noise):
    # Best is 1 + a (2.5 - 1), a = (4 s)^2 / ((4 s)^2 + 4 n^2). Ours is one number for all steps, and squared: near it.
    share = (4 * signal) ** 2 / ((4 * signal) ** 2 + 4 * noise**2)
    scale, best = scale_in_last_round(signal, noise)
    assert best == pytest.approx(1 + share * 1.5, rel=0.05)
    assert 1 + 0.6 * (best - 1) < scale < 1 + 1.6 * (best - 1)  # at 2 it would be no better than doing nothing


def test_for_devices_that_never_return_only_growth_faster_than_noise_counts():
    # Nothing agrees with anything: a = 2p - 1 at least, since a signal cannot grow faster than work.
    scale, best = scale_in_last_round(signal=1.0, noise=0.2, repeat=False)
    assert 0.8 * best < scale < 1.02 * best
    scale, _ = scale_in_last_round(signal=0.0, noise=1.0, repeat=False)
    assert scale == pytest.approx(1.0, abs=0.03)


def test_many_steps_average_the_noise_out():
    # 240 of 600 steps, seen once: at least 1 - 20/240 of it is signal. Sizes grow like steps^0.3.
    steps = [240, 360, 480, 600] * 3
    updates = [replace(update(d, [s**0.3, 0.0], s, 600), device=d) for d, s in enumerate(steps)]
    scale = learn_trusted({}, updates, digests_of(updates), 0.95).of(updates[0])
    # a = 0.917, q = (0.6 - 0.083) / 1.833 = 0.282: 1 + 0.917 (2.5^0.282 - 1) = 1.270
    assert scale == pytest.approx(1.270, abs=0.001)


def test_a_device_that_never_finishes_is_scaled_less_cautiously_each_time():
    steps = [240, 360, 480, 600] * 3

    def report(turn, done):  # no agreement with anybody, so a stays 1 - 20/240 = 0.917
        return [update(d, [s**0.3 * (axis == 12 * turn + d) for axis in range(36)], s, 600) for d, s in enumerate(done)]

    memory, scales = {}, []
    for turn in range(3):
        updates = report(turn, steps if turn < 2 else [600, *steps[1:]])
        learned = learn_trusted(memory, updates, digests_of(updates), 0.95)
        memory |= learned.memory
        scales.append(learned.of(updates[4]))  # 240 of 600 steps, every time
    # n a / (n a + 1 - a) = 0.917, 0.917, 0.957 times 2.5^0.282 - 1 = 0.295: n are the unfinished ones before this
    assert scales == pytest.approx([1.270, 1.270, 1.282], abs=0.001)
    assert memory["heard"][:5].tolist() == [[0, 0], [1, 3], [2, 3], [3, 0], [4, 3]]  # device 0 finished at last


def test_devices_that_agree_with_each_other_but_not_with_themselves_share_one_signal():
    steps = [240, 360, 480, 600] * 3
    memory, scales = {}, []
    for turn in range(2):
        updates = [update(d, [s**0.3 * (axis == turn) for axis in range(2)], s, 600) for d, s in enumerate(steps)]
        learned = learn_trusted(memory, updates, digests_of(updates), 0.95)
        memory |= learned.memory
        scales.append(learned.of(updates[0]))
    # No device had reported before the first round. In the second n = 0.95 x 9 + 9: 0.917 becomes 0.995.
    assert scales == pytest.approx([1.270, 1.293], abs=0.001)


@pytest.mark.parametrize("seed", range(6))
def test_noise_is_not_taken_for_a_common_signal(seed):
    """Random updates agree with nothing; by chance some cosines are above 0 and some below."""
    rng = np.random.default_rng(seed)
    memory = {}
    for _ in range(6):
        steps = [10, 20, 30, 40] * 3
        updates = [
            replace(
                update(d, [0.0], s, 40), delta=torch.from_numpy(rng.standard_normal(500).astype(np.float32)) * s**0.9
            )
            for d, s in enumerate(steps)
        ]
        learned = learn_trusted(memory, updates, digests_of(updates), 0.95)
        memory |= learned.memory
        p = learned.growth
        share = max(1 - 20 / 20, 2 * p - 1)
        streak = max(1, int(memory["heard"][1, 1]) - 1)
        q = min(1.0, (2 * p - (1 - share)) / (2 * share))
        expected = 1 + streak * share / (streak * share + 1 - share) * (2**q - 1)
        assert learned.of(updates[1]) == pytest.approx(expected)


def test_scatter_is_not_taken_for_growth():
    # Lengths that do not depend on steps: the slope of few points is random, and one standard error is subtracted.
    rng = np.random.default_rng(2)
    over = 0
    for _ in range(200):
        points = [update(d, [math.exp(rng.standard_normal()), 0.0], int(rng.integers(1, 11)), 10) for d in range(10)]
        law = Growth().add_round(points, digests_of(points), 0.95)
        assert law.cautious <= law.exponent
        over += law.cautious > 0
    assert over < 60, "about a fifth by chance; half without the standard error"


def test_the_memory_is_bounded_and_keeps_the_devices_that_reported_last(monkeypatch):
    monkeypatch.setattr(trusted, "MOST_DEVICES", 3)
    memory = {}
    for round in range(4):
        two = [update(2 * round, (1.0, 0.0)), update(2 * round + 1, (1.0, 0.0))]
        memory |= learn_trusted(memory, two, digests_of(two), 0.95).memory
    assert memory["heard"].tolist() == [[5, 0], [6, 0], [7, 0]]
    assert memory["sketches"].shape == (3, 2)
    memory |= learn_trusted(memory, [update(5, (1.0, 0.0))], digests_of([update(5, (1.0, 0.0))]), 0.95).memory
    assert memory["heard"].tolist() == [[6, 0], [7, 0], [5, 0]]


def test_non_finite_updates_teach_nothing():
    bad = [update(0, (math.nan, 1.0), 1, 4), update(1, (math.inf, 1.0), 2, 4), update(2, (0.0, 0.0), 2, 4)]
    learned = learn_trusted({}, bad, digests_of(bad), 0.95)
    assert learned.memory["growth"].tolist() == [0.0] * 4
    assert "heard" not in learned.memory
    assert learned.of(bad[0]) == 1.0


def test_without_updates_the_scale_is_1():
    assert learn_trusted({}, [], {}, 0.95).of(update(0, steps=1, asked=9)) == 1.0
