"""What a federated method is: a frozen dataclass of pure functions, with no state of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from fedlga.core.types import Assignment, Contribution, Local, ServerState

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector


@dataclass(frozen=True)
class WeightedVector:
    """One vector of a weighted sum: it counts coefficient * vector, with `weight` of the sum's total weight."""

    vector: Vector
    weight: float
    coefficient: float


@dataclass(frozen=True)
class WeightedSum:
    """The sum of coefficient * vector over a round's contributions, and the sum of their weights."""

    total: Vector
    weight: float

    def mean(self) -> Vector:
        """Divide the total by the weight, in place: the total is gone after this."""
        return self.total.div_(self.weight)


@dataclass(frozen=True)
class Direction:
    """Where a method wants the weights to go, and what the aggregator remembers besides its accumulated sums.

    The step is the sum of the terms. They are kept apart because sums of floating-point numbers depend on their order:
    `sgd` adds them to the weights one after the other.
    """

    terms: Sequence[Vector]
    memory: Memory = field(default_factory=dict[str, "Vector"])


@dataclass(frozen=True)
class Method(ABC):
    """A method's fields are its hyper-parameters; what changes is kept in ServerState and in devices' memories.

    `local` and `finish` run on the device, `weigh` and `direction` at the aggregator. A subclass is final.
    """

    default_policy: ClassVar[str] = "keep"  # unless the experiment names one
    policies: ClassVar[tuple[str, ...]] = ()  # the only policies that it goes with; empty: any
    sends: ClassVar[tuple[str, ...]] = ()  # vectors of the server's memory that travel with the weights
    uploads: ClassVar[tuple[str, ...]] = ()  # vectors that travel back with delta
    accumulates: ClassVar[tuple[str, ...]] = ()  # sums of `weigh` that are added to the server's memory, same name
    needs_fresh: ClassVar[str] = ""  # why it cannot use updates that began from earlier weights; empty: it can
    needs_sgd: ClassVar[str] = ""  # why its formula holds for SGD on the device only; empty: any optimiser will do

    def local(self, assignment: Assignment, memory: Memory) -> Local:
        """Return what is added to each gradient on the device."""
        return Local()

    def finish(self, assignment: Assignment, delta: Vector, steps: int, memory: Memory) -> tuple[Memory, Memory]:
        """Return what to upload besides delta, and what the device remembers, after its last step."""
        return {}, memory

    def weigh(self, contribution: Contribution) -> Mapping[str, WeightedVector]:
        """Return the contribution's part of each sum that `direction` needs; the aggregation rule computes the sums."""
        return {"delta": weigh_delta(contribution)}

    @abstractmethod
    def direction(
        self, state: ServerState, sums: Mapping[str, WeightedSum], contributions: Sequence[Contribution]
    ) -> Direction:
        """Return the step that this round's sums ask for.

        There is at least one contribution. They come without their vectors: those are in the sums.
        """


def weigh_delta(contribution: Contribution) -> WeightedVector:
    """Return the update for a weighted mean. A completed update is never written out: its scale counts here."""
    c = contribution
    return WeightedVector(c.update.delta, c.weight, c.weight * c.scale)


def recall(memory: Memory, name: str, like: Vector) -> Vector:
    """Return a named vector of a memory; zeros before the first round that sets it."""
    return memory[name] if name in memory else torch.zeros_like(like)


def effective_steps(steps: int, *, lr: float = 0.0, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Return how many gradients' worth of movement `steps` SGD steps make: -delta / lr if every gradient were 1.

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
