"""The policy `complete`: what it decides, its limits, and what it needs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from federations import close, digests_of, play, quadratics, update
from fedlga.core.aggregator import Aggregator
from fedlga.core.completion import digest
from fedlga.core.policies.base import Treatment
from fedlga.core.policies.complete import Complete, limit_scale
from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, ServerState
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.fedlga import FedLGA

# Device A does 1 of 2 steps, B both: at eta 1/2 their deltas are (2, 0) and (0, 3), and A's full one would be (3, 0).
TWO_DEVICES = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 2]], "asked": 2, "lr": 0.5}


@pytest.mark.parametrize("scale", ["feedback", "growth", "linear", "printed", 2.0])
def test_without_a_complete_device_updates_are_kept_as_they_came(scale):
    unfinished = {**TWO_DEVICES, "script": [[1, 2]], "asked": 3}
    state, (record,) = play(*quadratics(FedLGA(), **unfinished, policy=Complete(scale=scale)), 1)
    close(state.w, (1.0, 1.5))
    assert record.note == "no complete device: updates kept as they came"
    assert record.scales == {}


def test_a_completed_update_counts_as_finished_work():
    updates = [update(0, steps=1, asked=4), update(1, steps=4, asked=4)]
    decision = Complete(scale=2.0).decide(ServerState(0, torch.zeros(2)), updates, digests_of(updates))
    assert decision.treatments == {0: Treatment(2.0, completed=True), 1: Treatment()}
    aggregator = Aggregator(FedAvg(), Complete(scale=2.0))
    used = aggregator.aggregate(ServerState(0, torch.zeros(2)), [Contribution(u) for u in updates]).used
    assert [c.steps for c in used] == [4, 4]
    assert [c.scale for c in used] == [2.0, 1.0]


@pytest.mark.parametrize(
    ("scale", "length", "limit", "limited", "reason"),
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
def test_scales_are_finite_and_make_no_update_too_long(scale, length, limit, limited, reason):
    assert limit_scale(scale, length, limit) == (limited, reason)


def test_a_limited_scale_is_in_the_record():
    # A sent (2, 0), B is complete with (0, 3): A times 10 would be 20 long, and may be 2 x 3: times 3.
    _, (record,) = play(*quadratics(FedAvg(), **TWO_DEVICES, policy=Complete(scale=10.0)), 1)
    assert record.scales == {0: 3.0}
    assert record.clipped == {0: "longer than 6"}


def test_complete_remembers_in_the_server_state_only():
    updates = [update(d, (1.0 + d, 0.0), 1 + d, 4) for d in range(4)]
    policy, state, digests = Complete(), ServerState(0, torch.zeros(2)), digests_of(updates)
    first = policy.decide(state, updates, digests)
    again = policy.decide(state, updates, digests)
    assert first.growth == again.growth
    assert first.memory
    later = policy.decide(replace(state, memory=first.memory), updates, digests)
    assert later.agreement == pytest.approx(1.0)
    assert first.agreement is None


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        return out


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["feedback", "growth", "printed"])
def test_twenty_million_parameters_and_ten_updates_need_nothing_larger_than_the_model(scale, monkeypatch):
    monkeypatch.setattr(digest, "LARGE", 1 << 40)  # only this thread is watched
    size = 20_000_000
    pattern = torch.linspace(-1, 1, size)
    updates = [update(d, [0.0], steps=1 + d % 5, asked=5) for d in range(10)]
    contributions = [Contribution(replace(u, delta=pattern * 0.01 * u.steps)) for u in updates]
    aggregator = Aggregator(FedLGA(), Complete(scale=scale))
    state = ServerState(0, torch.zeros(size))
    with LargestTensor() as watched:
        after = aggregator.aggregate(state, contributions).state
    assert watched.largest == size
    assert after.w.numel() == size
    assert bool(torch.isfinite(after.w).all())


@pytest.mark.parametrize("scale", ["grow", 0.0, -1.0, math.nan])
def test_a_bad_scale_is_refused(scale):
    with pytest.raises(BadInput, match=r"complete\.scale: got .*; it takes"):
        create("policy", "complete", {"scale": scale})
