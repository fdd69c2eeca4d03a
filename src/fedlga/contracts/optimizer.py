"""What every server optimiser must hold."""

from __future__ import annotations

import torch

from fedlga.contracts.base import expect
from fedlga.contracts.federation import train
from fedlga.core.registry import create

W = torch.linspace(-1, 1, 50)


def direction(seed: int) -> torch.Tensor:
    """Return a random direction."""
    return torch.randn(50, generator=torch.Generator().manual_seed(seed))


def stays_without_direction(name: str) -> None:
    """A zero direction in the first round leaves the weights as they are."""
    w, _ = create("optimizer", name).step(W, [torch.zeros(50)], {})
    torch.testing.assert_close(w, W)


def follows_the_direction(name: str) -> None:
    """The first step goes the way of the direction, in every parameter."""
    w, _ = create("optimizer", name).step(W, [direction(0)], {})
    expect((torch.sign(w - W) == torch.sign(direction(0))).all(), "a parameter went the other way")


def adds_terms(name: str) -> None:
    """Several terms give the same step as their sum, except for rounding."""
    optimizer = create("optimizer", name)
    parts, _ = optimizer.step(W, [direction(0), direction(1)], {})
    whole, _ = optimizer.step(W, [direction(0) + direction(1)], {})
    torch.testing.assert_close(parts, whole)


def keeps_state_in_memory(name: str) -> None:
    """All that it remembers is in the memory that it returns, under names with 'optimizer.'; it changes no argument."""
    optimizer = create("optimizer", name)
    w, memory = optimizer.step(W, [direction(0)], {})
    expect(all(key.startswith("optimizer.") for key in memory), f"it remembers {', '.join(memory)}")
    copy = {key: value.clone() for key, value in memory.items()}
    again = [create("optimizer", name).step(w, [direction(1)], copy)[0] for _ in range(2)]
    expect(torch.equal(*again), "two steps from the same memory differ")
    expect(torch.equal(W, torch.linspace(-1, 1, 50)), "the weights were changed in place")
    expect(all(torch.equal(copy[key], memory[key]) for key in memory), "the memory was changed in place")
    expect(torch.equal(optimizer.step(w, [direction(1)], memory)[0], again[0]), "it remembers something elsewhere")


def trains(name: str) -> None:
    """It trains with FedAvg and FedDyn, to finite weights."""
    for method in ("fedavg", "feddyn"):
        state, _ = train(method=method, server_optimizer=name)
        expect(torch.isfinite(state.w).all(), f"weights are not finite with {method}")


CHECKS = [stays_without_direction, follows_the_direction, adds_terms, keeps_state_in_memory, trains]
