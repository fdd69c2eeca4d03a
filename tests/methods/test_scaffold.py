"""Scaffold by hand, its optimum where FedAvg drifts, and what its controls sum to."""

from __future__ import annotations

import pytest
import torch

import by_hand
from federations import close, play, quadratics
from fedlga.methods.scaffold import Scaffold


@pytest.mark.parametrize(
    "check",
    [
        by_hand.check_scaffold,
        by_hand.check_scaffold_from_other_weights,
        by_hand.check_scaffold_decay,
        by_hand.check_scaffold_momentum,
    ],
    ids=lambda check: check.__name__,
)
def test_by_hand(check):
    check(Scaffold)


@pytest.mark.slow
def test_scaffold_reaches_the_optimum_where_fedavg_drifts():
    close(play(*quadratics(Scaffold(), **by_hand.UNEQUAL_CURVATURES), 200)[0].w, [0.8, 3.2], 1e-3)


def test_the_servers_control_is_the_mean_of_all_controls():
    federation, state = quadratics(Scaffold(), **by_hand.UNEQUAL_WORK)
    state, _ = play(federation, state, 5)
    held = [memory["control"] for _, memory in federation.backend.memories()]
    torch.testing.assert_close(state.memory["control"], torch.stack(held).mean(0))
