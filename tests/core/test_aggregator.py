"""The aggregator: held and streamed updates give the same bits, and only a policy that needs all holds them."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import close, update
from fedlga.core.aggregator import Aggregator
from fedlga.core.completion import digest
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.drop import Drop
from fedlga.core.policies.keep import Keep
from fedlga.core.registry import create, names_of
from fedlga.core.types import Contribution, ServerState
from fedlga.methods.fedavg import FedAvg


def contributions_of(size: int, count: int, seed: int = 0) -> list[Contribution]:
    """Return contributions that any method can aggregate, of unequal weights and steps."""
    generator = torch.Generator().manual_seed(seed)
    contributions = []
    for device in range(count):
        delta, control, truth = torch.randn(3, size, generator=generator)
        sent = update(device, [0.0], 1 + device % 4, 4, uploads={"control": control}, truth=truth)
        weight = 1.0 + float(torch.rand((), generator=generator)) * 9
        contributions.append(Contribution(replace(sent, delta=delta), weight=weight, share=weight / 50))
    return contributions


def state_of(size: int, seed: int = 0) -> ServerState:
    """Return a state in which every method already remembers something."""
    w, control, drift = torch.randn(3, size, generator=torch.Generator().manual_seed(seed + 1000))
    return ServerState(round=3, w=w, memory={"control": control, "drift": drift})


@pytest.mark.parametrize("name", names_of("method"))
@settings(max_examples=25)
@given(size=st.integers(1, 10_000), count=st.integers(1, 8), seed=st.integers(0, 99), remembers=st.booleans())
def test_held_updates_give_the_bits_of_streamed_ones(name, size, count, seed, remembers):
    """An audit needs all updates at once; without it each is summed as it arrives."""
    aggregator = Aggregator(create("method", name), Keep())
    state = state_of(size, seed) if remembers else ServerState(0, state_of(size, seed).w)
    streamed = aggregator.aggregate(state, iter(contributions_of(size, count, seed)))
    held = aggregator.aggregate(state, iter(contributions_of(size, count, seed)), audit=True)
    assert streamed.audit is None
    assert held.audit is not None
    assert torch.equal(held.state.w, streamed.state.w)
    assert held.state.memory.keys() == streamed.state.memory.keys()
    for key, vector in held.state.memory.items():
        assert torch.equal(vector, streamed.state.memory[key])


def test_streamed_updates_are_held_one_at_a_time():
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def arriving():
        nonlocal most
        for device in range(6):
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))
            (c,) = contributions_of(5000, 1, seed=device)
            c = replace(c, update=replace(c.update, device=device))
            alive.append(weakref.ref(c.update.delta))
            yield c
            del c

    aggregator = Aggregator(FedAvg(), Keep())
    state = aggregator.aggregate(state_of(5000), contributions_of(5000, 6)).state  # of a first round, all are held
    aggregation = aggregator.aggregate(state, arriving())
    assert [c.update.device for c in aggregation.used] == list(range(6))
    assert most <= 1


@pytest.mark.parametrize("large", [digest.LARGE, 1], ids=["read here", "read by threads"])
@pytest.mark.parametrize("policy", [Keep(), Drop(), Complete()])
def test_contributions_keep_their_order_and_lose_their_vectors(policy, large, monkeypatch):
    monkeypatch.setattr(digest, "LARGE", large)
    given = contributions_of(9000, 9)
    aggregation = Aggregator(FedAvg(), policy).aggregate(state_of(9000), iter(given))
    assert [c.update.device for c in aggregation.received] == list(range(9))
    finished = [c.update.device for c in given if c.update.finished]
    assert [c.update.device for c in aggregation.used] == (finished if isinstance(policy, Drop) else list(range(9)))
    for c in [*aggregation.received, *aggregation.used]:
        assert c.update.delta.numel() == 0
        assert not c.update.uploads
        assert c.update.truth is None


@pytest.mark.parametrize("audit", [False, True])
@pytest.mark.parametrize("policy", [Drop(), Keep(), Complete()])
def test_without_a_used_update_the_weights_stay(policy, audit):
    state = state_of(2)
    unfinished = [Contribution(update(0, steps=1, asked=2))] if isinstance(policy, Drop) else []
    aggregation = Aggregator(FedAvg(), policy).aggregate(state, unfinished, audit=audit)
    assert aggregation.state.w is state.w
    assert aggregation.state.round == state.round
    assert not aggregation.used
    assert len(aggregation.received) == len(unfinished)


def test_a_shortened_update_by_hand():
    # Lengths 1, 2 and 9, median 2, bound 1.5: the third is shortened to 3, by 1/3.
    given = [Contribution(update(d, (length, 0.0))) for d, length in enumerate([1.0, 2.0, 9.0])]
    rule = create("aggregation", "mean", {"length_bound": 1.5})
    aggregation = Aggregator(FedAvg(), Keep(), rule).aggregate(ServerState(0, torch.zeros(2)), given)
    close(aggregation.state.w, [2.0, 0.0])
    assert aggregation.bounded == {2: pytest.approx(1 / 3)}
