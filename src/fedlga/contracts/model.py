"""What every model must hold."""

from __future__ import annotations

import torch

from fedlga.contracts.base import expect
from fedlga.contracts.federation import train
from fedlga.learning.named import make_model


def fits_images(name: str) -> None:
    """It takes images of several shapes and gives one score a class."""
    for shape, classes in (((1, 8, 8), 10), ((3, 32, 32), 100)):
        make_model(name, shape, classes, seed=0)


def repeats(name: str) -> None:
    """The same seed gives the same starting weights, and another seed other ones."""
    first, second, other = (make_model(name, (1, 8, 8), 10, seed).vector for seed in (0, 0, 1))
    expect(torch.equal(first, second), "two models differ")
    expect(not torch.equal(first, other), "another seed gives the same weights")


def trains(name: str) -> None:
    """It trains with FedAvg, to finite weights that moved."""
    state, _ = train(method="fedavg", model=name, rounds=1)
    start = make_model(name, (1, 8, 8), 10, 0).vector
    expect(torch.isfinite(state.w).all(), "weights are not finite")
    expect(not torch.equal(state.w, start), "nothing was learned")


CHECKS = [fits_images, repeats, trains]
