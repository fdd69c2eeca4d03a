"""What every method must hold."""

from __future__ import annotations

import dataclasses

import torch

from fedlga.contracts.base import expect
from fedlga.contracts.federation import train
from fedlga.core.registry import create, find, names_of


def is_frozen(name: str) -> None:
    """It is a frozen dataclass that works with its defaults."""
    method = create("method", name)
    expect(dataclasses.is_dataclass(method), "it is not a dataclass")
    expect(type(method).__dataclass_params__.frozen, "it is not frozen: @dataclass(frozen=True)")  # pyright: ignore


def trains_with_every_policy(name: str) -> None:
    """It trains with every policy that it allows, to finite weights."""
    for policy in find("method", name).policies or names_of("policy"):
        state, records = train(method=name, stragglers=policy)
        expect(torch.isfinite(state.w).all(), f"weights are not finite with policy {policy}")
        expect(any(r.slow for r in records), "no device was slow: nothing was checked")


def repeats(name: str) -> None:
    """The same seed gives the same weights, bit for bit."""
    expect(torch.equal(train(method=name)[0].w, train(method=name)[0].w), "two runs differ: is there hidden state?")


def agrees_on_all_backends(name: str) -> None:
    """Serial and pool give the same weights, bit for bit."""
    serial, pool = (train(method=name, backend=backend, workers=2)[0] for backend in ("serial", "pool"))
    expect(torch.equal(serial.w, pool.w), "serial and pool differ")


def streams(name: str) -> None:
    """Updates that are summed as they arrive give the same bits as updates that are held."""
    streamed, held = (train(method=name, audit=audit)[0] for audit in (False, True))
    expect(torch.equal(streamed.w, held.w), "streamed and held updates differ")


CHECKS = [is_frozen, trains_with_every_policy, repeats, agrees_on_all_backends, streams]
