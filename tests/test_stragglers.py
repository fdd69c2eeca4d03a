"""The four policies, and the scales of completion."""

from __future__ import annotations

import math
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from federations import close, looks, play, quadratics, update
from fedlga import completion
from fedlga.completion import Growth, growth, trusted
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.fedlga import FedLGA, printed_scale
from fedlga.methods.scaffold import Scaffold
from fedlga.settings import BadInput
from fedlga.stragglers import Complete, Drop, Keep, Wait, make_policy
from fedlga.types import Server

# Device A does 1 of 2 steps, B both: at eta 1/2 their deltas are (2, 0) and (0, 3), and A's full one would be (3, 0).
STAGE = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 2]], "asked": 2, "lr": 0.5}


@pytest.mark.parametrize(
    ("policy", "w", "seconds", "steps"),
    [
        (Wait(), (1.5, 1.5), 4.0, [2, 2]),  # A does all its work, which takes it twice the deadline of 2
        (Drop(), (0.0, 3.0), 2.0, [1, 2]),
        (Keep(), (1.0, 1.5), 2.0, [1, 2]),
        (
            Complete(scale="growth"),
            (1.5, 1.5),
            2.0,
            [1, 2],
        ),  # finds A's full delta, at the deadline's cost
    ],
    ids=["wait", "drop", "keep", "complete"],
)
def test_the_four_policies_by_hand(policy, w, seconds, steps):
    server, (record,) = play(*quadratics(FedAvg(), **STAGE, policy=policy), 1)
    close(server.w, w)
    assert record.simulated_seconds == seconds
    assert dict(zip(record.devices, record.steps, strict=True)) == dict(enumerate(steps))
    assert record.slow == [0]
    assert sorted(record.used) == ([1] if isinstance(policy, Drop) else [0, 1])


def test_a_dropped_device_does_not_remember_the_round():
    # Its control would otherwise be in c_i but not in c: c would no longer be the mean of all c_i.
    federation, server = quadratics(Scaffold(), **STAGE, policy=Drop())
    play(federation, server, 1)
    assert [device for device, _ in federation.backend.memories()] == [1]


def test_a_round_in_which_nobody_finishes_is_recorded_under_drop():
    server, (record,) = play(*quadratics(FedAvg(), **{**STAGE, "script": [[1, 1]]}, policy=Drop()), 1)
    close(server.w, (0.0, 0.0))
    assert record.note == "nobody finished: the model stays as it was"


@pytest.mark.parametrize("scale", ["trusted", "growth", "linear", "printed", 2.0])
def test_a_round_without_a_complete_device_is_kept_as_it_came_and_recorded(scale):
    unfinished = {**STAGE, "script": [[1, 2]], "asked": 3}
    server, (record,) = play(*quadratics(FedLGA(), **unfinished, policy=Complete(scale=scale)), 1)
    close(server.w, (1.0, 1.5))
    assert record.note == "no complete device: updates kept as they came"
    assert record.scales == {}


def test_completing_calls_the_work_full():
    done = Complete(scale=2.0).answer(
        Server(0, torch.zeros(2)), [update(0, steps=1, asked=4), update(1, steps=4, asked=4)]
    )
    assert [u.steps for u in done.updates] == [4, 4]
    assert [u.scale for u in done.updates] == [2.0, 1.0]


def test_printed_is_equations_5_and_6_with_the_matrix_written_out():
    # The same through the n x n matrix that the paper prints, which the product never makes.
    generator = torch.Generator().manual_seed(1)
    delta, expected = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    u = update(0, delta.tolist(), steps=3, asked=5, lr=0.2)
    g = -delta / (0.2 * 3)
    matrix = torch.outer(g, g)
    by_paper = delta + matrix @ (expected - delta)
    ours = delta * printed_scale(u, expected.float())
    torch.testing.assert_close(by_paper, ours, rtol=1e-4, atol=1e-4)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.05, 0.95), st.lists(st.integers(1, 40), min_size=3, max_size=8, unique=True))
def test_the_growth_law_finds_a_given_exponent(exponent, steps):
    # |delta| = 3 steps^p exactly, in whatever direction
    deltas = [(3 * s**exponent * math.cos(s), 3 * s**exponent * math.sin(s)) for s in steps]
    sent = [update(i, d, steps=s, asked=40) for i, (d, s) in enumerate(zip(deltas, steps, strict=True))]
    law = Growth().seen(sent, looks(sent), fading=0.95)
    assert law.exponent == pytest.approx(exponent, abs=1e-3)
    assert growth({}, sent, looks(sent), 0.95).of(sent[0]) == pytest.approx((40 / steps[0]) ** exponent, rel=5e-3)


def test_the_growth_law_forgets_at_its_rate_and_is_centred_in_each_round():
    # Round 1: steps 1 and 4, looks 1 and 4: slope 1. Round 2: the same steps, both looks 10: slope 0, however large.
    # x centred is -+log 2 in both: xx = 2 log^2 2 a round, xy = 2 log^2 2 in the first and 0 in the second.
    first = [update(0, (1.0, 0.0), 1, 4), update(1, (4.0, 0.0), 4, 4)]
    second = [update(0, (10.0, 0.0), 1, 4), update(1, (10.0, 0.0), 4, 4)]
    law = Growth().seen(first, looks(first), 0.5)
    assert law.exponent == pytest.approx(1.0)
    assert law.seen(second, looks(second), 0.5).exponent == pytest.approx(0.5 / 1.5)


@pytest.mark.parametrize(
    ("lengths", "exponent"),
    [((1.0, 100.0), 1.0), ((5.0, 1.0), 0.0)],  # faster than steps: 1; shrinking: 0
)
def test_the_exponent_stays_between_0_and_1(lengths, exponent):
    sent = [update(0, (lengths[0], 0.0), 1, 4), update(1, (lengths[1], 0.0), 4, 4)]
    law = Growth().seen(sent, looks(sent), 0.95)
    assert law.exponent == exponent


def test_updates_without_length_or_meaning_do_not_enter_the_law():
    odd = [update(2, (0.0, 0.0), 2, 4), update(3, (math.nan, 1.0), 2, 4), update(4, (math.inf, 1.0), 2, 4)]
    fine = [update(0, (1.0, 0.0), 1, 4), update(1, (2.0, 0.0), 4, 4)]
    assert Growth().seen([*fine, *odd], looks([*fine, *odd]), 0.95) == Growth().seen(fine, looks(fine), 0.95)
    assert Growth().seen(odd, looks(odd), 0.95) == Growth()


def test_with_nothing_seen_the_law_does_nothing():
    assert growth({}, [], {}, 0.95).of(update(0, steps=1, asked=9)) == 1.0
    assert trusted({}, [], {}, 0.95).of(update(0, steps=1, asked=9)) == 1.0


def test_momentum_counts_in_the_law():
    # m = 1/2: one step moves 1 gradient, two move 2.5: at p = 1 the scale is 2.5, not 2.
    sent = [update(0, (1.0, 0.0), 1, 2, momentum=0.5), update(1, (2.5, 0.0), 2, 2, momentum=0.5)]
    law = Growth().seen(sent, looks(sent), 0.95)
    assert law.exponent == pytest.approx(1.0)
    assert growth({}, sent, looks(sent), 0.95).of(sent[0]) == pytest.approx(2.5)


class LargestTensor(TorchDispatchMode):
    """Watches every operation for the largest tensor it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


@pytest.mark.parametrize("scale", ["trusted", "growth", "printed"])
def test_twenty_million_parameters_and_ten_updates_need_nothing_larger_than_the_model(scale, monkeypatch):
    monkeypatch.setattr(completion, "LARGE", 1 << 40)  # what is watched is this thread
    size = 20_000_000
    pattern = torch.linspace(-1, 1, size)
    sent = [update(d, [0.0], steps=1 + d % 5, asked=5) for d in range(10)]
    sent = [type(u)(**{**vars(u), "delta": pattern * 0.01 * u.steps}) for u in sent]
    server = Server(0, torch.zeros(size))
    with LargestTensor() as watched:
        answer = Complete(scale=scale).answer(server, sent)
        after = FedLGA().aggregate(server, answer.updates)
    assert watched.largest == size
    assert after.w.numel() == size
    assert bool(torch.isfinite(after.w).all())


def test_updates_looked_at_beside_each_other_look_the_same(monkeypatch):
    sent = [update(d, [0.0], steps=1 + d % 5, asked=5) for d in range(9)]
    sent = [type(u)(**{**vars(u), "delta": torch.randn(50_000)}) for u in sent]
    _, alone = completion.looked_at(iter(sent), sketched=True)
    monkeypatch.setattr(completion, "LARGE", 1)
    held, beside = completion.looked_at(iter(sent), sketched=True)
    assert held == sent
    assert {d: seen.size for d, seen in alone.items()} == {d: seen.size for d, seen in beside.items()}
    for d, seen in alone.items():
        assert seen.sketch is not None
        assert torch.equal(seen.sketch, cast("torch.Tensor", beside[d].sketch))


@pytest.mark.parametrize("scale", ["grow", 0.0, -1.0, math.nan])
def test_a_scale_that_is_none_is_refused(scale):
    with pytest.raises(BadInput, match=r"complete\.scale: got .*; it takes"):
        make_policy("complete", {"scale": scale})
