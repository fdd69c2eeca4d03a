"""The contract that every method passes, and the equalities that must hold between them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from federations import close, play, quadratics, update
from fedlga.federation import select
from fedlga.methods import METHODS, make_method
from fedlga.methods.base import effective_steps
from fedlga.stragglers import POLICIES, Complete, Keep, Wait, make_policy
from fedlga.types import Server

EVERY_METHOD = pytest.mark.parametrize("name", METHODS)
UNEQUAL = {
    "centres": [(4.0, 0.0), (0.0, 4.0), (1.0, -2.0)],
    "curvatures": [1.0, 0.5, 2.0],
    "script": [[1, 3, 2], [3, 2, 1]],
    "asked": 3,
    "lr": 0.1,
}
NOBODY_SLOW = {**UNEQUAL, "script": [[3, 3, 3]]}


def updates(name: str, count: int = 3) -> list:
    """Updates that any method can aggregate."""
    extra = {"control": torch.tensor([0.5, 0.25])}
    return [update(d, (1.0 + d, -1.0 * d), steps=d + 1, asked=count, extra=extra, share=0.1) for d in range(count)]


@EVERY_METHOD
def test_a_method_is_a_frozen_dataclass_whose_fields_have_meanings(name):
    method = make_method(name, {})
    for field in dataclasses.fields(method):
        assert field.metadata["meaning"]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, 2.0)


@EVERY_METHOD
def test_aggregate_changes_nothing_it_was_given(name):
    given = updates(name)
    before = [u.delta.clone() for u in given]
    server = Server(round=3, w=torch.tensor([1.0, 1.0]), memory={"control": torch.ones(2), "drift": torch.ones(2)})
    make_method(name, {}).aggregate(server, given)
    close(server.w, [1.0, 1.0])
    close(server.memory["control"], [1.0, 1.0])
    close(server.memory["drift"], [1.0, 1.0])
    assert all(torch.equal(u.delta, b) for u, b in zip(given, before, strict=True))


@EVERY_METHOD
def test_aggregate_takes_a_stream(name):
    server = Server(round=0, w=torch.zeros(2))
    method = make_method(name, {})
    listed, streamed = method.aggregate(server, updates(name)), method.aggregate(server, iter(updates(name)))
    assert torch.equal(listed.w, streamed.w)


@EVERY_METHOD
def test_only_the_ratio_of_weights_counts(name):
    server = Server(round=0, w=torch.zeros(2))
    method = make_method(name, {})
    plain = method.aggregate(server, updates(name))
    heavy = method.aggregate(server, [dataclasses.replace(u, weight=8.0) for u in updates(name)])
    torch.testing.assert_close(plain.w, heavy.w)


@EVERY_METHOD
def test_aggregate_keeps_the_memory_of_others(name):
    server = Server(round=0, w=torch.zeros(2), memory={"growth": torch.tensor([1.0, 2.0])})
    assert torch.equal(
        make_method(name, {}).aggregate(server, updates(name)).memory["growth"], torch.tensor([1.0, 2.0])
    )


@EVERY_METHOD
def test_the_same_seed_gives_every_method_the_same_devices_stragglers_and_start(name):
    policy = Complete() if name == "fedlga" else Keep()
    federation, server = quadratics(make_method(name, {}), **UNEQUAL, cohort=2, policy=policy)
    reference, start = quadratics(make_method("fedavg", {}), **UNEQUAL, cohort=2)
    assert torch.equal(server.w, start.w)
    ours, theirs = (play(f, s, 6)[1] for f, s in ((federation, server), (reference, start)))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.devices, a.steps, a.slow, a.simulated_seconds) == (b.devices, b.steps, b.slow, b.simulated_seconds)


@EVERY_METHOD
def test_wait_is_keep_when_nobody_is_slow(name):
    method = make_method(name, {})
    waited, records = play(*quadratics(method, **NOBODY_SLOW, policy=Wait()), 4)
    kept, others = play(*quadratics(method, **NOBODY_SLOW, policy=Keep()), 4)
    assert torch.equal(waited.w, kept.w)
    assert [r.simulated_seconds for r in records] == [r.simulated_seconds for r in others]


@EVERY_METHOD
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_the_same_when_nobody_is_slow(name, policy):
    method = make_method(name, {})
    kept, _ = play(*quadratics(method, **NOBODY_SLOW), 4)
    other, _ = play(*quadratics(method, **NOBODY_SLOW, policy=make_policy(policy, {})), 4)
    assert torch.equal(kept.w, other.w)


@EVERY_METHOD
def test_a_round_in_which_nobody_reports_changes_nothing(name):
    federation, server = quadratics(make_method(name, {}), **{**UNEQUAL, "script": [[0, 0, 0]]})
    after, (record,) = play(federation, server, 1)
    assert torch.equal(after.w, server.w)
    assert record.note == "nobody reported: the model stays as it was"
    assert record.train_loss is None
    assert record.absent == record.devices


def test_with_replacement_a_device_drawn_twice_works_once_and_counts_twice():
    stage = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 1]], "asked": 1, "lr": 0.5, "cohort": 3}
    federation, server = quadratics(make_method("fedavg", {}), **stage, replacement=True)
    for round in range(8):
        times = select(federation, round)
        assert sum(times.values()) == 3
        after, (record,) = play(federation, dataclasses.replace(server, round=round), 1)
        assert sorted(record.devices) == sorted(times)
        close(after.w, [2 * times[0] / 3, 2 * times[1] / 3])
    assert any(len(select(federation, round)) == 2 for round in range(8))


def same_as_fedavg(method, rounds=4, policy=None, stage=UNEQUAL, tolerance=0.0):
    ours, _ = play(*quadratics(method, **stage, policy=policy), rounds)
    theirs, _ = play(*quadratics(make_method("fedavg", {}), **stage), rounds)
    torch.testing.assert_close(ours.w, theirs.w, rtol=0, atol=tolerance)


def test_fedprox_without_its_term_is_fedavg():
    same_as_fedavg(make_method("fedprox", {"mu": 0.0}))


def test_fednova_with_equal_steps_is_fedavg():
    same_as_fedavg(make_method("fednova", {}), stage=NOBODY_SLOW, tolerance=1e-6)


def test_fedlga_with_nobody_slow_is_fedavg():
    same_as_fedavg(make_method("fedlga", {}), stage=NOBODY_SLOW, policy=Complete())


def test_scaffold_with_zero_controls_is_fedavg_in_round_one():
    same_as_fedavg(make_method("scaffold", {}), rounds=1)


@pytest.mark.parametrize(("momentum", "pull"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.5), (0.6, 0.3)])
def test_effective_steps_are_what_unit_gradients_move(momentum, pull):
    # By definition: run the loop with every gradient 1 and see how far it gets, in units of the rate.
    lr, w, velocity = 0.1, 0.0, 0.0
    for _ in range(7):
        velocity = momentum * velocity + 1 + pull * w
        w -= lr * velocity
    assert effective_steps(7, lr=lr, momentum=momentum, pull=pull) == pytest.approx(-w / lr)
