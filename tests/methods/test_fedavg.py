"""FedAvg by hand, and where it goes wrong: with unequal work, and with unequal curvatures."""

from __future__ import annotations

import pytest
import torch

import by_hand
from federations import close, play, quadratics
from fedlga.methods.fedavg import FedAvg


@pytest.mark.parametrize(
    "check",
    [by_hand.check_fedavg, by_hand.check_fedavg_by_examples, by_hand.check_momentum_starts_at_zero],
    ids=lambda check: check.__name__,
)
def test_by_hand(check):
    check(FedAvg)


@pytest.mark.slow
def test_with_unequal_steps_fedavg_misses_the_optimum():
    wrong, _ = play(*quadratics(FedAvg(), **by_hand.UNEQUAL_WORK), 400)
    # Its fixed point weighs each centre by 1 - (1 - eta)^steps: 0.0199 and 0.0956: (0.69, 3.31).
    weight = [1 - 0.99**2, 1 - 0.99**10]
    close(wrong.w, [4 * weight[0] / sum(weight), 4 * weight[1] / sum(weight)], 1e-3)


@pytest.mark.slow
def test_with_unequal_curvatures_fedavg_drifts():
    drifted, _ = play(*quadratics(FedAvg(), **by_hand.UNEQUAL_CURVATURES), 200)
    assert torch.dist(drifted.w, torch.tensor([0.8, 3.2])) > 0.9
