"""What a federated method is: three functions, and no state of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from ..kernels import mean
from ..types import Local, Server, Task, Update

if TYPE_CHECKING:
    from ..types import Memory, Vector


@dataclass(frozen=True)
class Method(ABC):
    """A frozen dataclass whose fields are the method's hyper-parameters; what changes lives in Server and Memory.

    `local` and `finish` run where the device is, `aggregate` at the aggregator. A subclass is final.
    """

    policies: ClassVar[tuple[str, ...]] = ("keep", "wait", "drop", "complete")  # that go with it; the first by default
    sends: ClassVar[tuple[str, ...]] = ()  # vectors of Server.memory that travel with the weights
    uploads: ClassVar[tuple[str, ...]] = ()  # vectors that travel back with delta

    def local(self, task: Task, memory: Memory) -> Local:
        """What is added to each gradient on the device."""
        return Local()

    def finish(self, task: Task, delta: Vector, steps: int, memory: Memory) -> tuple[Memory, Memory]:
        """After the last step: what to upload besides delta, and what the device remembers."""
        return {}, memory

    @abstractmethod
    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:
        """The next weights and memory. `updates` holds one at least, and may be a stream: go through it once."""


def mean_delta(updates: Iterable[Update]) -> Vector:
    """The averaged update, each with its weight and scale: of a stream, holding no more than one update at a time.

    A list is gone through block by block, so that the sum stays in the cache: each update is then read once, and that
    is all the memory traffic there is.
    """
    if isinstance(updates, list):
        counts = [u.weight * u.scale for u in updates]
        found = mean([u.delta for u in updates], counts, sum(u.weight for u in updates))
        return _mean_by_blocks(updates) if found is None else found
    total: Vector | None = None
    mass = 0.0
    for u in updates:
        counts = u.weight * u.scale  # no completed update is ever written out
        total = u.delta * counts if total is None else total.add_(u.delta, alpha=counts)
        mass += u.weight
    assert total is not None, "aggregate is never called without an update"
    return total.div_(mass)


BLOCK = 1 << 21  # parameters: smaller blocks cost more in calls than they save


def _mean_by_blocks(updates: list[Update]) -> Vector:
    mass = sum(u.weight for u in updates)
    total = torch.empty_like(updates[0].delta)
    for start in range(0, len(total), BLOCK):
        part = slice(start, start + BLOCK)
        block = torch.mul(updates[0].delta[part], updates[0].weight * updates[0].scale, out=total[part])
        for u in updates[1:]:
            block.add_(u.delta[part], alpha=u.weight * u.scale)
        block.div_(mass)
    return total


def remembered(memory: Memory, name: str, like: Vector) -> Vector:
    """A named vector of a memory; zeros before the first round that sets it."""
    return memory[name] if name in memory else torch.zeros_like(like)


def effective_steps(steps: int, *, lr: float = 0.0, momentum: float = 0.0, pull: float = 0.0) -> float:
    """How many gradients' worth of movement `steps` SGD steps make: -delta / lr if every gradient were 1.

    Plain SGD: `steps`. With momentum every gradient goes on moving the weights in later steps; with a pull towards
    the weights sent, earlier movement fades. Both are linear in the gradients, so a recursion on one number is exact.
    """
    if momentum == 0 and pull == 0:
        return float(steps)
    velocity = moved = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - lr * pull * moved
        moved += velocity
    return moved
