"""What every aggregation rule must hold."""

from __future__ import annotations

import torch

from fedlga.contracts.base import expect
from fedlga.contracts.federation import train
from fedlga.core.method import WeightedVector
from fedlga.core.registry import create

WEIGHTS = (1.0, 2.0, 1.0, 3.0, 2.0)


def make_vectors() -> list[WeightedVector]:
    """Return five vectors with unequal weights and scales."""
    values = torch.randn(len(WEIGHTS), 300, generator=torch.Generator().manual_seed(0))
    scales = (1.0, 2.0, 1.0, 1.5, 1.0)
    return [WeightedVector(v, w, w * s) for v, w, s in zip(values, WEIGHTS, scales, strict=True)]


def keeps_what_all_agree_on(name: str) -> None:
    """If all updates are equal, the result is the sum of the weights times the update."""
    same = torch.arange(7.0)
    total = create("aggregation", name).sum([WeightedVector(same, w, w) for w in WEIGHTS])
    torch.testing.assert_close(total, same * sum(WEIGHTS))
    alone = create("aggregation", name).sum([WeightedVector(same, 2.0, 2.0)])
    torch.testing.assert_close(alone, same * 2)


def starts_from_memory(name: str) -> None:
    """With a starting value, the sum is added to it, in a new tensor."""
    rule, start = create("aggregation", name), torch.ones(300)
    with_start = rule.sum(make_vectors(), start)
    torch.testing.assert_close(with_start, rule.sum(make_vectors()) + 1)
    expect(torch.equal(start, torch.ones(300)), "the starting value was changed")


def changes_no_update(name: str) -> None:
    """It does not change the updates."""
    vectors, before = make_vectors(), make_vectors()
    create("aggregation", name).sum(vectors)
    expect(all(torch.equal(v.vector, b.vector) for v, b in zip(vectors, before, strict=True)), "an update was changed")


def ignores_order(name: str) -> None:
    """The order of the updates does not matter, except for rounding."""
    rule = create("aggregation", name)
    torch.testing.assert_close(rule.sum(make_vectors()), rule.sum(make_vectors()[::-1]))


def trains(name: str) -> None:
    """It trains with FedAvg, FedNova, Scaffold and FedDyn, completed, to finite weights."""
    for method in ("fedavg", "fednova", "scaffold", "feddyn"):
        state, _ = train(method=method, stragglers="complete", aggregation=name)
        expect(torch.isfinite(state.w).all(), f"weights are not finite with {method}")
        expect(all(torch.isfinite(v).all() for v in state.memory.values()), f"memory is not finite with {method}")


CHECKS = [keeps_what_all_agree_on, starts_from_memory, changes_no_update, ignores_order, trains]
