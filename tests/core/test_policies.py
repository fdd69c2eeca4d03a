"""The four policies by hand."""

from __future__ import annotations

import pytest

from federations import close, play, quadratics
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.drop import Drop
from fedlga.core.policies.keep import Keep
from fedlga.core.policies.wait import Wait
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.scaffold import Scaffold

# Device A does 1 of 2 steps, B both: at eta 1/2 their deltas are (2, 0) and (0, 3), and A's full one would be (3, 0).
TWO_DEVICES = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 2]], "asked": 2, "lr": 0.5}


@pytest.mark.parametrize(
    ("policy", "w", "seconds", "steps"),
    [
        (Wait(), (1.5, 1.5), 4.0, [2, 2]),  # A does all its work, which takes it twice the deadline of 2
        (Drop(), (0.0, 3.0), 2.0, [1, 2]),
        (Keep(), (1.0, 1.5), 2.0, [1, 2]),
        (Complete(scale="growth"), (1.5, 1.5), 2.0, [1, 2]),  # finds A's full delta, and the round ends at the deadline
    ],
    ids=["wait", "drop", "keep", "complete"],
)
def test_the_four_policies_by_hand(policy, w, seconds, steps):
    state, (record,) = play(*quadratics(FedAvg(), **TWO_DEVICES, policy=policy), 1)
    close(state.w, w)
    assert record.simulated_seconds == seconds
    assert dict(zip(record.devices, record.steps, strict=True)) == dict(enumerate(steps))
    assert record.slow == [0]
    assert sorted(record.used) == ([1] if isinstance(policy, Drop) else [0, 1])


def test_a_dropped_device_does_not_remember_the_round():
    # Its control would otherwise be in c_i but not in c: c would no longer be the mean of all c_i.
    federation, state = quadratics(Scaffold(), **TWO_DEVICES, policy=Drop())
    play(federation, state, 1)
    assert [device for device, _ in federation.backend.memories()] == [1]


def test_a_round_in_which_no_device_finishes_is_recorded_under_drop():
    state, (record,) = play(*quadratics(FedAvg(), **{**TWO_DEVICES, "script": [[1, 1]]}, policy=Drop()), 1)
    close(state.w, (0.0, 0.0))
    assert record.note == "nobody finished: the model stays as it was"
