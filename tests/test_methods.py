"""The six methods against numbers worked out by hand, and against what is known of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import by_hand
from federations import close, play, quadratics, update
from fedlga.methods.base import mean_delta
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.feddyn import FedDyn
from fedlga.methods.fedlga import FedLGA
from fedlga.methods.fednova import FedNova
from fedlga.methods.fedprox import FedProx
from fedlga.methods.scaffold import Scaffold
from fedlga.stragglers import Complete


@pytest.mark.parametrize(
    ("check", "cls"),
    [
        (by_hand.fedavg, FedAvg),
        (by_hand.fedavg, FedLGA),  # with keep's updates: Eq. 7 is an average with a global rate
        (by_hand.fedavg_by_examples, FedAvg),
        (by_hand.momentum_starts_anew, FedAvg),
        (by_hand.fedprox, FedProx),
        (by_hand.fednova, FedNova),
        (by_hand.fednova_by_examples, FedNova),
        (by_hand.fednova_momentum, FedNova),
        (by_hand.fednova_proximal, FedNova),
        (by_hand.scaffold, Scaffold),
        (by_hand.scaffold_elsewhere, Scaffold),
        (by_hand.scaffold_decay, Scaffold),
        (by_hand.scaffold_momentum, Scaffold),
        (by_hand.feddyn, FedDyn),
    ],
    ids=lambda value: value.__name__,
)
def test_by_hand(check, cls):
    check(cls)


def test_notes_of_an_update_hold_no_vector():
    noted = replace(update(0, [1.0, 2.0]), extra={"control": torch.ones(2)}, truth=torch.ones(2)).light()
    assert noted.delta.untyped_storage().nbytes() == 0
    assert not noted.extra
    assert noted.truth is None


@pytest.mark.parametrize("count", [3, 70_000, 5_000_003])
def test_the_mean_of_a_list_is_that_of_a_stream_to_the_last_bit(count):
    """One goes through the updates in blocks, the other one by one; an audit turns streams into lists."""
    deltas = torch.randn(7, count, generator=torch.Generator().manual_seed(1))
    updates = [replace(update(d, [0.0]), delta=v, weight=1.7 + d, scale=1 + 0.3 * d) for d, v in enumerate(deltas)]
    assert torch.equal(mean_delta(updates), mean_delta(iter(updates)))


def test_every_method_meets_the_same_devices_stragglers_batches_and_starting_weights():
    by_hand.same_draws_for_every_method()


def test_fedlga_by_hand():
    # The stage of by_hand.py: A did 1 of 2 steps, delta (2, 0); B is complete, delta (0, 3).
    # growth: log|delta| on log steps through (0, log 2), (log 2, log 3): p = log(3/2) / log 2, scale 2^p = 3/2.
    # Completed A: (3, 0), just what it would have sent; the mean is (1.5, 1.5).
    server, (record,) = play(*by_hand.stage(FedLGA(), policy=Complete(scale="growth")), 1)
    close(server.w, [1.5, 1.5])
    assert record.scales == pytest.approx({0: 1.5})
    assert record.growth == pytest.approx(0.5849625)
    # printed: g = -delta_A / (1/2 * 1) = (-4, 0); d = (0, 3) - (2, 0) = (-2, 3); g.d = 8; g (g.d) = (-32, 0):
    # (2, 0) + (-32, 0) = (-30, 0), which is -15 delta_A. The mean with B: (-15, 1.5).
    server, (record,) = play(*by_hand.stage(FedLGA(), policy=Complete(scale="printed")), 1)
    close(server.w, [-15.0, 1.5])
    assert record.scales == pytest.approx({0: -15.0})
    # a number: 2 delta_A = (4, 0)
    server, _ = play(*by_hand.stage(FedLGA(), policy=Complete(scale=2.0)), 1)
    close(server.w, [2.0, 1.5])


# Two devices with the optimum of their mean loss at (2, 2); the second does five times the work of the first.
UNEQUAL = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[2, 10]], "asked": 10, "lr": 0.01}


def test_with_unequal_steps_fedavg_goes_wrong_and_fednova_does_not():
    wrong, _ = play(*quadratics(FedAvg(), **UNEQUAL), 400)
    right, _ = play(*quadratics(FedNova(), **UNEQUAL), 400)
    # FedAvg's fixed point weighs each centre by 1 - (1 - eta)^steps: 0.0199 and 0.0956: (0.69, 3.31).
    weight = [1 - 0.99**2, 1 - 0.99**10]
    close(wrong.w, [4 * weight[0] / sum(weight), 4 * weight[1] / sum(weight)], 1e-3)
    # FedNova's by that over the steps: 0.00995 and 0.00956: within 0.05 of the optimum, and exact as eta goes to 0.
    close(right.w, [2.0, 2.0], 0.05)


# Different curvatures: with many local steps FedAvg drifts towards the mean of the centres, away from the optimum,
# which is (a_1 b_1 + a_2 b_2) / (a_1 + a_2) = (0.8, 3.2).
DRIFT = {
    "centres": [(4.0, 0.0), (0.0, 4.0)],
    "curvatures": [1.0, 4.0],
    "script": [[10, 10]],
    "asked": 10,
    "lr": 0.1,
}


def test_scaffold_and_feddyn_reach_the_optimum_where_fedavg_drifts():
    drifted, _ = play(*quadratics(FedAvg(), **DRIFT), 200)
    assert torch.dist(drifted.w, torch.tensor([0.8, 3.2])) > 0.9
    close(play(*quadratics(Scaffold(), **DRIFT), 200)[0].w, [0.8, 3.2], 1e-3)
    close(play(*quadratics(FedDyn(alpha=1.0), **DRIFT), 200)[0].w, [0.8, 3.2], 1e-3)


def test_feddyn_reaches_the_optimum_with_unfinished_work():
    # What its docstring claims: the fixed point does not move when devices stop early.
    close(play(*quadratics(FedDyn(alpha=1.0), **{**DRIFT, "script": [[2, 10], [10, 3]]}), 600)[0].w, [0.8, 3.2], 1e-2)


def test_feddyn_keeps_its_invariant_when_updates_are_completed():
    # h = mean of all h_i, or the optimum would move: h goes by what devices sent, not by what was made of it.
    policy = Complete(scale=3.0, longest=100.0)
    federation, server = quadratics(FedDyn(alpha=1.0), **{**UNEQUAL, "lr": 0.1}, policy=policy)
    server, records = play(federation, server, 5)
    assert records[-1].scales == {0: 3.0}
    held = [memory["gradient"] for _, memory in federation.backend.memories()]
    torch.testing.assert_close(server.memory["drift"], torch.stack(held).mean(0))


def test_scaffolds_control_is_the_mean_of_all_controls():
    federation, server = quadratics(Scaffold(), **UNEQUAL)
    server, _ = play(federation, server, 5)
    held = [memory["control"] for _, memory in federation.backend.memories()]
    torch.testing.assert_close(server.memory["control"], torch.stack(held).mean(0))
