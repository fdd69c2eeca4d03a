"""What methods share: the steps that count."""

from __future__ import annotations

import pytest
import torch

from federations import update
from fedlga.core.method import effective_steps, recall, weigh_delta
from fedlga.core.types import Contribution


@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5), (0.6, 0.3)])
def test_effective_steps_are_what_unit_gradients_move(momentum, pull):
    # By definition: run the loop with every gradient 1 and see how far it gets, in units of the rate.
    lr, w, velocity = 0.1, 0.0, 0.0
    for _ in range(7):
        velocity = momentum * velocity + 1 + pull * w
        w -= lr * velocity
    assert effective_steps(7, lr=lr, momentum=momentum, pull=pull) == pytest.approx(-w / lr)


def test_a_scale_counts_in_the_coefficient_and_not_in_the_weight():
    weighed = weigh_delta(Contribution(update(0, (1.0, 2.0)), weight=3.0, scale=1.5))
    assert (weighed.weight, weighed.coefficient) == (3.0, 4.5)
    assert weighed.vector.tolist() == [1.0, 2.0]


def test_an_unset_memory_is_zero():
    assert recall({}, "control", torch.ones(2)).tolist() == [0.0, 0.0]
    assert recall({"control": torch.ones(2)}, "control", torch.zeros(2)).tolist() == [1.0, 1.0]
