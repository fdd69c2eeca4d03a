"""The laws of completion against growth, noise and mixtures of known make, and their limits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from federations import looks, play, quadratics, update
from fedlga import completion
from fedlga.completion import SKETCH, Growth, look, trusted
from fedlga.methods.fedavg import FedAvg
from fedlga.stragglers import Complete, Drop, Keep, held_back
from fedlga.types import Server, Update

SIZE, ASKED = 2000, 10


def sent(device: int, delta: np.ndarray, steps: int) -> Update:
    return replace(update(device, [0.0], steps, ASKED), delta=torch.from_numpy(delta.astype(np.float32)))


def federation_of(
    signal: float, noise: float, power: float = 1.0, rounds: int = 60, devices: int = 12, repeat: bool = True
):
    """Rounds of updates: each device goes its own way (signal * steps^power), with a random walk on top (noise).

    Gives what the law says in the last round of a straggler with 4 of 10 steps, and the mean of its best multiples.
    """
    devices = 12
    rng = np.random.default_rng(0)
    ways = rng.standard_normal((devices if repeat else devices * rounds, SIZE)) / math.sqrt(SIZE)
    memory, best, said = {}, [], 1.0
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
        scales = trusted(memory, updates, looks(updates), 0.95)
        memory = {**memory, **scales.memory}
        said = next(scales.of(u) for u in updates if u.steps == 4)
    return said, float(np.mean(best))


@pytest.mark.parametrize("power", [1.0, 0.7, 0.4])
def test_pure_signal_is_completed_by_its_own_exponent(power):
    said, best = federation_of(signal=1.0, noise=0.0, power=power)
    assert best == pytest.approx(2.5**power, rel=1e-3)
    assert said == pytest.approx(best, rel=0.02)


def test_pure_noise_is_left_alone():
    # |delta| grows like sqrt(steps), which the growth law takes for growth: it would say 2.5^0.5 = 1.6.
    said, best = federation_of(signal=0.0, noise=1.0)
    assert best == pytest.approx(1.0, abs=0.05)
    assert said == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize(("signal", "noise"), [(1.0, 0.5), (1.0, 1.0), (0.5, 1.0), (0.25, 1.0)])
def test_a_mixture_is_completed_in_part_and_never_overdone(signal, noise):
    # Best is 1 + a (2.5 - 1), a = (4 s)^2 / ((4 s)^2 + 4 n^2). Ours is one number for all steps, and squared: near it.
    share = (4 * signal) ** 2 / ((4 * signal) ** 2 + 4 * noise**2)
    said, best = federation_of(signal, noise)
    assert best == pytest.approx(1 + share * 1.5, rel=0.05)
    assert 1 + 0.6 * (best - 1) < said < 1 + 1.6 * (best - 1)  # at 2 it would be no better than doing nothing


def test_of_devices_that_never_come_back_only_growth_faster_than_noise_counts():
    # Nothing agrees with anything: a = 2p - 1 at least, since a signal cannot grow faster than work.
    said, best = federation_of(signal=1.0, noise=0.2, repeat=False)
    assert 0.8 * best < said < 1.02 * best
    said, _ = federation_of(signal=0.0, noise=1.0, repeat=False)
    assert said == pytest.approx(1.0, abs=0.03)


def test_many_steps_average_the_noise_out():
    # 240 of 600 steps, seen once: at least 1 - 20/240 of it is signal. Sizes grow like steps^0.3.
    steps = [240, 360, 480, 600] * 3
    updates = [replace(update(d, [s**0.3, 0.0], s, 600), device=d) for d, s in enumerate(steps)]
    scale = trusted({}, updates, looks(updates), 0.95).of(updates[0])
    # a = 0.917, q = (0.6 - 0.083) / 1.833 = 0.282: 1 + 0.917 (2.5^0.282 - 1) = 1.270
    assert scale == pytest.approx(1.270, abs=0.001)


def test_of_a_device_that_never_finishes_less_and_less_is_held_back():
    steps = [240, 360, 480, 600] * 3

    def report(turn, done):  # no agreement with anybody, so a stays 1 - 20/240 = 0.917
        return [update(d, [s**0.3 * (axis == 12 * turn + d) for axis in range(36)], s, 600) for d, s in enumerate(done)]

    memory, scales = {}, []
    for turn in range(3):
        updates = report(turn, steps if turn < 2 else [600, *steps[1:]])
        learned = trusted(memory, updates, looks(updates), 0.95)
        memory |= learned.memory
        scales.append(learned.of(updates[4]))  # 240 of 600 steps, every time
    # n a / (n a + 1 - a) = 0.917, 0.917, 0.957 times 2.5^0.282 - 1 = 0.295: n are the unfinished ones before this
    assert scales == pytest.approx([1.270, 1.270, 1.282], abs=0.001)
    assert memory["heard"][:5].tolist() == [[0, 0], [1, 3], [2, 3], [3, 0], [4, 3]]  # device 0 finished at last


def test_where_devices_agree_with_each_other_and_not_with_themselves_they_are_completed_as_one():
    steps = [240, 360, 480, 600] * 3
    memory, scales = {}, []
    for turn in range(2):
        updates = [update(d, [s**0.3 * (axis == turn) for axis in range(2)], s, 600) for d, s in enumerate(steps)]
        learned = trusted(memory, updates, looks(updates), 0.95)
        memory |= learned.memory
        scales.append(learned.of(updates[0]))
    # Nobody came back in the first round. In the second n = 0.95 x 9 + 9: 0.917 becomes 0.995.
    assert scales == pytest.approx([1.270, 1.293], abs=0.001)


@pytest.mark.parametrize("seed", range(6))
def test_noise_is_nobodys_common_signal(seed):
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
        learned = trusted(memory, updates, looks(updates), 0.95)
        memory |= learned.memory
        p = learned.growth
        share = max(1 - 20 / 20, 2 * p - 1)
        streak = max(1, int(memory["heard"][1, 1]) - 1)
        q = min(1.0, (2 * p - (1 - share)) / (2 * share))
        expected = 1 + streak * share / (streak * share + 1 - share) * (2**q - 1)
        assert learned.of(updates[1]) == pytest.approx(expected)


def test_scatter_is_not_taken_for_growth():
    # Sizes that have nothing to do with steps: the slope of few points is anything, and one standard error less is not.
    rng = np.random.default_rng(2)
    over = 0
    for _ in range(200):
        points = [update(d, [math.exp(rng.standard_normal()), 0.0], int(rng.integers(1, 11)), 10) for d in range(10)]
        law = Growth().seen(points, looks(points), 0.95)
        assert law.cautious <= law.exponent
        over += law.cautious > 0
    assert over < 60, "a fifth or so by chance; half without the caution"


def test_sketches_keep_inner_products():
    rng = np.random.default_rng(1)
    a, noise = (torch.from_numpy(rng.standard_normal(50_003).astype(np.float32)) for _ in range(2))
    for mix in (0.0, 0.5, 0.9, 1.0):
        b = mix * a + (1 - mix) * noise
        exact = float(torch.dot(a, b) / (a.norm() * b.norm()))
        seen = float(torch.dot(look(a).direction, look(b).direction))
        assert len(look(a).sketch) == SKETCH
        assert seen == pytest.approx(exact, abs=4 / math.sqrt(SKETCH))
    short = torch.arange(5.0)
    assert torch.equal(look(short).sketch, short)


@pytest.mark.parametrize("count", [1, 4096, 4097, 4_194_304, 5_000_003])
def test_an_update_is_looked_at_in_blocks_and_in_whole(count):
    delta = torch.linspace(-1, 1, count)
    assert look(delta).size == pytest.approx(float(delta.double().norm()), rel=1e-4)
    assert look(delta, sketched=False).sketch is None
    rows = -(-count // SKETCH)
    signs = torch.from_numpy(np.random.default_rng(count // SKETCH).choice(np.array([-1.0, 1.0], np.float32), rows))
    if count > SKETCH:
        padded = torch.zeros(rows * SKETCH)
        padded[:count] = delta
        torch.testing.assert_close(look(delta).sketch, signs @ padded.view(rows, SKETCH), rtol=1e-4, atol=1e-4)


def test_the_memory_is_bounded_and_keeps_whom_it_heard_last(monkeypatch):
    monkeypatch.setattr(completion, "DEVICES", 3)
    memory = {}
    for round in range(4):
        two = [update(2 * round, (1.0, 0.0)), update(2 * round + 1, (1.0, 0.0))]
        memory |= trusted(memory, two, looks(two), 0.95).memory
    assert memory["heard"].tolist() == [[5, 0], [6, 0], [7, 0]]
    assert memory["sketches"].shape == (3, 2)
    memory |= trusted(memory, [update(5, (1.0, 0.0))], looks([update(5, (1.0, 0.0))]), 0.95).memory
    assert memory["heard"].tolist() == [[6, 0], [7, 0], [5, 0]]


def test_updates_that_are_no_numbers_teach_nothing():
    bad = [update(0, (math.nan, 1.0), 1, 4), update(1, (math.inf, 1.0), 2, 4), update(2, (0.0, 0.0), 2, 4)]
    learned = trusted({}, bad, looks(bad), 0.95)
    assert learned.memory["growth"].tolist() == [0.0] * 4
    assert "heard" not in learned.memory
    assert learned.of(bad[0]) == 1.0


@pytest.mark.parametrize(
    ("scale", "size", "limit", "held", "reason"),
    [
        (1.5, 2.0, 4.0, 1.5, None),
        (3.0, 2.0, 4.0, 2.0, "longer than 4"),
        (3.0, 5.0, 4.0, 1.0, "longer than 4"),  # longer already: as sent
        (0.5, 5.0, 4.0, 0.5, None),
        (math.nan, 1.0, 4.0, 1.0, "not a number"),
        (math.inf, 1.0, 4.0, 1.0, "not a number"),
        (2.0, 0.0, 4.0, 1.0, "nothing was sent"),
    ],
)
def test_no_update_is_made_too_long_or_no_number(scale, size, limit, held, reason):
    assert held_back(scale, size, limit) == (held, reason)


def test_what_was_held_back_is_in_the_record():
    # A sent (2, 0), B is complete with (0, 3): A times 10 would be 20 long, and may be 2 x 3: times 3.
    stage = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 2]], "asked": 2, "lr": 0.5}
    _, (record,) = play(*quadratics(FedAvg(), **stage, policy=Complete(scale=10.0)), 1)
    assert record.scales == {0: 3.0}
    assert record.clipped == {0: "longer than 6"}


def test_the_audit_by_hand():
    # A sent (2, 0) and would have sent (3, 0); B is complete with (0, 3). The true mean is (1.5, 1.5).
    stage = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 2]], "asked": 2, "lr": 0.5, "audit": True}
    _, (kept,) = play(*quadratics(FedAvg(), **stage, policy=Keep()), 1)
    assert kept.audit == {
        "error": pytest.approx(1.0),
        "stragglers": 1,
        "completed": pytest.approx(1.0),
        "sent": pytest.approx(1.0),
        "best": pytest.approx(0.0, abs=1e-6),
        "mean_completed": pytest.approx(0.5),
        "mean_sent": pytest.approx(0.5),
        "true_scales": {0: pytest.approx(1.5)},
    }
    _, (twice,) = play(*quadratics(FedAvg(), **stage, policy=Complete(scale=2.0)), 1)
    assert twice.audit is not None
    assert twice.audit["error"] == pytest.approx(1.0)  # 4 is as far from 3 as 2 is
    _, (grown,) = play(*quadratics(FedAvg(), **stage, policy=Complete(scale="growth")), 1)
    assert grown.audit is not None
    assert grown.audit["error"] == pytest.approx(0.0, abs=1e-5)
    _, (dropped,) = play(*quadratics(FedAvg(), **stage, policy=Drop()), 1)
    assert dropped.audit is not None
    assert dropped.audit["stragglers"] == 0, "what is dropped is not simulated, so there is nothing to audit"


def test_a_round_without_stragglers_has_no_error():
    stage = {"centres": [(4.0, 0.0)], "script": [[2]], "asked": 2, "lr": 0.5, "audit": True}
    _, (record,) = play(*quadratics(FedAvg(), **stage), 1)
    assert record.audit is not None
    assert record.audit["error"] is None


def test_complete_remembers_in_the_server_alone():
    updates = [update(d, (1.0 + d, 0.0), 1 + d, 4) for d in range(4)]
    policy, server = Complete(), Server(0, torch.zeros(2))
    first = policy.answer(server, updates)
    again = policy.answer(server, updates)
    assert first.growth == again.growth
    assert first.memory is not None
    later = policy.answer(replace(server, memory=first.memory), updates)
    assert later.agreement == pytest.approx(1.0)
    assert first.agreement is None


def test_rounds_of_an_audit_that_diverged_do_not_count():
    """Not-a-number becomes null in JSON."""
    from fedlga.audit import errors

    class Of:
        def __init__(self, completed, sent):
            self.audit = {"completed": completed, "sent": sent, "best": sent, "mean_completed": 0.0, "mean_sent": 1.0}

    assert errors([Of(1.0, 2.0), Of(None, None)])["approximation_error"] == 0.5
    assert errors([Of(None, None)])["approximation_error"] is None
    assert errors([Of(1.0, 2.0), Of(math.inf, 1.0), Of(1.0, math.nan)])["approximation_error"] == 0.5
