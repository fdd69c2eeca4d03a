"""FedDyn by hand, its optimum where FedAvg drifts, and what must hold of h."""

from __future__ import annotations

import pytest
import torch

import by_hand
from federations import close, play, quadratics
from fedlga.core.policies.complete import Complete
from fedlga.methods.feddyn import FedDyn


def test_by_hand():
    by_hand.check_feddyn(FedDyn)


@pytest.mark.slow
def test_feddyn_reaches_the_optimum_where_fedavg_drifts():
    close(play(*quadratics(FedDyn(alpha=1.0), **by_hand.UNEQUAL_CURVATURES), 200)[0].w, [0.8, 3.2], 1e-3)


@pytest.mark.slow
def test_feddyn_reaches_the_optimum_with_unfinished_work():
    # As its docstring says, the fixed point does not move when devices stop early.
    unfinished = {**by_hand.UNEQUAL_CURVATURES, "script": [[2, 10], [10, 3]]}
    close(play(*quadratics(FedDyn(alpha=1.0), **unfinished), 600)[0].w, [0.8, 3.2], 1e-2)


def test_h_is_the_mean_of_all_h_i_when_updates_are_completed():
    # Otherwise the optimum would move: h changes by updates as sent, not as completed.
    policy = Complete(scale=3.0, longest=100.0)
    federation, state = quadratics(FedDyn(alpha=1.0), **{**by_hand.UNEQUAL_WORK, "lr": 0.1}, policy=policy)
    state, records = play(federation, state, 5)
    assert records[-1].scales == {0: 3.0}
    held = [memory["gradient"] for _, memory in federation.backend.memories()]
    torch.testing.assert_close(state.memory["drift"], torch.stack(held).mean(0))
