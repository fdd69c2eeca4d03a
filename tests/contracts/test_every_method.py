"""What every method must hold, and the equalities between methods."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from federations import close, play, quadratics, update
from fedlga.core.aggregator import Aggregator
from fedlga.core.method import Method
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.keep import Keep
from fedlga.core.policies.wait import Wait
from fedlga.core.registry import create, names_of
from fedlga.core.settings import settings_of
from fedlga.core.types import Contribution, ServerState, Update

pytestmark = pytest.mark.slow

EVERY_METHOD = pytest.mark.parametrize("name", names_of("method"))
EVERY_POLICY = pytest.mark.parametrize("policy", names_of("policy"))
UNEQUAL = {
    "centres": [(4.0, 0.0), (0.0, 4.0), (1.0, -2.0)],
    "curvatures": [1.0, 0.5, 2.0],
    "script": [[1, 3, 2], [3, 2, 1]],
    "asked": 3,
    "lr": 0.1,
}
NOBODY_SLOW = {**UNEQUAL, "script": [[3, 3, 3]]}


def contributions(count: int = 3, **changes: Any) -> list[Contribution]:
    """Return contributions that any method can aggregate."""
    uploads = {"control": torch.tensor([0.5, 0.25])}
    updates = [update(d, (1.0 + d, -1.0 * d), steps=d + 1, asked=count, uploads=uploads) for d in range(count)]
    return [Contribution(u, **{"share": 0.1, **changes}) for u in updates]


def aggregate(method: Method, state: ServerState, given: list[Contribution], **options: Any) -> ServerState:
    """Return the state after one aggregation with the policy keep."""
    return Aggregator(method, Keep()).aggregate(state, iter(given), **options).state


@EVERY_METHOD
def test_a_method_is_a_frozen_dataclass_whose_fields_have_meanings(name):
    method = create("method", name)
    assert dataclasses.is_dataclass(method)
    assert len(settings_of(method)) == len(dataclasses.fields(method))
    for field in dataclasses.fields(method):
        assert field.metadata["meaning"]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, 2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 2.0


@EVERY_METHOD
@pytest.mark.parametrize("audit", [False, True])
def test_aggregation_changes_nothing_it_was_given(name, audit):
    given = contributions()
    before = [c.update.delta.clone() for c in given]
    state = ServerState(round=3, w=torch.tensor([1.0, 1.0]), memory={"control": torch.ones(2), "drift": torch.ones(2)})
    aggregate(create("method", name), state, given, audit=audit)
    close(state.w, [1.0, 1.0])
    close(state.memory["control"], [1.0, 1.0])
    close(state.memory["drift"], [1.0, 1.0])
    assert all(torch.equal(c.update.delta, b) for c, b in zip(given, before, strict=True))


def as_bytes(value: Any) -> Any:
    """Return a value with its tensors as bytes, so that any changed bit shows."""
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    return {key: as_bytes(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def fields_of(value: Update | ServerState) -> dict[str, Any]:
    return {f.name: as_bytes(getattr(value, f.name)) for f in dataclasses.fields(value)}


@EVERY_METHOD
@EVERY_POLICY
@pytest.mark.parametrize("size", [3, 10_000])  # read whole, and with compiled code
def test_an_update_never_changes(name, policy, size):
    check_updates_stay(size, create("method", name), create("policy", policy))


@pytest.mark.parametrize("rule", names_of("aggregation"))
@pytest.mark.parametrize("optimizer", names_of("optimizer"))
@pytest.mark.parametrize("name", ["scaffold", "feddyn"])  # they have more than one sum
def test_an_update_never_changes_with_any_rule_and_optimizer(name, rule, optimizer):
    for settings in ({}, {"length_bound": 1.0}):  # the bound shortens half of the updates
        rules = create("aggregation", rule, settings), create("optimizer", optimizer)
        check_updates_stay(10_000, create("method", name), create("policy", "complete"), *rules)


def check_updates_stay(size: int, *parts: Any) -> None:
    """Compare all fields and all bits of what devices sent before and after two rounds and an audit.

    The state before a round must not change either: a run may continue from it.
    """
    aggregator = Aggregator(*parts)
    generator = torch.Generator().manual_seed(0)
    updates = []
    for device, steps in enumerate([4, 1, 2, 4, 3]):
        delta, control, truth = torch.randn(3, size, generator=generator)
        sent = update(device, [0.0], steps, 4, uploads={"control": control}, truth=truth, momentum=0.5)
        updates.append(dataclasses.replace(sent, delta=delta, examples=device + 1))
    before = [fields_of(u) for u in updates]
    state = ServerState(0, torch.randn(size, generator=generator))
    for audit in (False, False, True):
        given = [Contribution(u, weight=1.0 + u.device, share=0.1) for u in updates]
        earlier = fields_of(state)
        after = aggregator.aggregate(state, iter(given), audit=audit).state
        assert [fields_of(u) for u in updates] == before
        assert [c.update for c in given] == updates
        assert fields_of(state) == earlier
        state = after


@EVERY_METHOD
def test_streamed_and_held_updates_give_the_same_weights(name):
    state = ServerState(round=0, w=torch.zeros(2))
    method = create("method", name)
    held, streamed = (aggregate(method, state, contributions(), audit=audit) for audit in (True, False))
    assert torch.equal(held.w, streamed.w)


@EVERY_METHOD
def test_only_the_ratio_of_weights_counts(name):
    state = ServerState(round=0, w=torch.zeros(2))
    method = create("method", name)
    plain = aggregate(method, state, contributions())
    heavy = aggregate(method, state, contributions(weight=8.0))
    torch.testing.assert_close(plain.w, heavy.w)


@EVERY_METHOD
def test_aggregation_keeps_the_memory_of_others(name):
    state = ServerState(round=0, w=torch.zeros(2), memory={"growth": torch.tensor([1.0, 2.0])})
    after = aggregate(create("method", name), state, contributions())
    assert torch.equal(after.memory["growth"], torch.tensor([1.0, 2.0]))


@EVERY_METHOD
def test_the_same_seed_gives_every_method_the_same_devices_stragglers_and_start(name):
    policy = Complete() if name == "fedlga" else Keep()
    federation, state = quadratics(create("method", name), **UNEQUAL, cohort=2, policy=policy)
    reference, start = quadratics(create("method", "fedavg"), **UNEQUAL, cohort=2)
    assert torch.equal(state.w, start.w)
    ours, theirs = (play(f, s, 6)[1] for f, s in ((federation, state), (reference, start)))
    for a, b in zip(ours, theirs, strict=True):
        assert (a.devices, a.steps, a.slow, a.simulated_seconds) == (b.devices, b.steps, b.slow, b.simulated_seconds)


@EVERY_METHOD
def test_wait_is_keep_when_nobody_is_slow(name):
    method = create("method", name)
    waited, records = play(*quadratics(method, **NOBODY_SLOW, policy=Wait()), 4)
    kept, others = play(*quadratics(method, **NOBODY_SLOW, policy=Keep()), 4)
    assert torch.equal(waited.w, kept.w)
    assert [r.simulated_seconds for r in records] == [r.simulated_seconds for r in others]


@EVERY_METHOD
@EVERY_POLICY
def test_every_policy_is_the_same_when_nobody_is_slow(name, policy):
    method = create("method", name)
    kept, _ = play(*quadratics(method, **NOBODY_SLOW), 4)
    other, _ = play(*quadratics(method, **NOBODY_SLOW, policy=create("policy", policy)), 4)
    assert torch.equal(kept.w, other.w)


@EVERY_METHOD
def test_a_round_in_which_nobody_reports_changes_nothing(name):
    federation, state = quadratics(create("method", name), **{**UNEQUAL, "script": [[0, 0, 0]]})
    after, (record,) = play(federation, state, 1)
    assert torch.equal(after.w, state.w)
    assert record.note == "nobody reported: the model stays as it was"
    assert record.train_loss is None
    assert record.absent == record.devices


def check_same_as_fedavg(method, rounds=4, policy=None, setting=UNEQUAL, tolerance=0.0):
    ours, _ = play(*quadratics(method, **setting, policy=policy), rounds)
    theirs, _ = play(*quadratics(create("method", "fedavg"), **setting), rounds)
    torch.testing.assert_close(ours.w, theirs.w, rtol=0, atol=tolerance)


def test_fedprox_without_its_term_is_fedavg():
    check_same_as_fedavg(create("method", "fedprox", {"mu": 0.0}))


def test_fednova_with_equal_steps_is_fedavg():
    check_same_as_fedavg(create("method", "fednova"), setting=NOBODY_SLOW, tolerance=1e-6)


def test_fedlga_with_nobody_slow_is_fedavg():
    check_same_as_fedavg(create("method", "fedlga"), setting=NOBODY_SLOW, policy=Complete())


def test_scaffold_with_zero_controls_is_fedavg_in_round_one():
    check_same_as_fedavg(create("method", "scaffold"), rounds=1)
