"""What a policy is: how long the aggregator waits, and how it counts the updates it then has.

A policy knows nothing of the method that averages the updates, so every policy goes with every method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from fedlga.core.types import ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.completion.digest import UpdateDigest
    from fedlga.core.completion.private import Instruction
    from fedlga.core.types import Memory, Vector


@dataclass(frozen=True)
class Treatment:
    """How one update counts."""

    scale: float = 1.0  # what its delta is multiplied by
    completed: bool = False  # its work counts as finished


AS_SENT = Treatment()


@dataclass(frozen=True)
class Decision:
    """What a policy decided about some updates."""

    treatments: Mapping[int, Treatment]  # by device; a device that is not in it is left out
    memory: Memory = field(default_factory=dict[str, "Vector"])  # what is added to the server's memory
    growth: float | None = None
    agreement: float | None = None
    clipped: Mapping[int, str] = field(default_factory=dict[int, str])
    note: str | None = None


class Policy(ABC):
    """One answer to stragglers; a frozen dataclass of settings like a method, and as stateless."""

    waits: ClassVar[bool] = False  # until the slowest device has finished; otherwise to the deadline
    uses_unfinished: ClassVar[bool] = True  # False: unfinished work need not be simulated

    @property
    def needs_all(self) -> bool:
        """Whether its decision on one update depends on the round's other updates."""
        return False

    @property
    def needs_sketches(self) -> bool:
        """Whether `decide` needs the sketches of updates; only asked if the policy needs all of them."""
        return False

    def with_carry(self, carry: float) -> Policy:
        """Return the policy for a server optimiser that repeats this share of a round's step in the next round."""
        return self

    def instruct(self, state: ServerState) -> Instruction | None:
        """Return what devices complete their own updates with; None: they send them as they are."""
        return None

    def learn(self, state: ServerState, step: Sequence[Vector], updates: Sequence[Update]) -> Memory:
        """Return what to remember of a round: of the step that was taken, the sum of some terms, and of its updates.

        The updates come without their vectors.
        """
        return {}

    @abstractmethod
    def decide(self, state: ServerState, updates: Sequence[Update], digests: Mapping[int, UpdateDigest]) -> Decision:
        """Decide how updates count.

        A policy with `needs_all` gets all updates of a round and a digest of each, by device. Any other gets the
        updates one at a time, as they arrive, without digests; it decides their treatment, and remembers nothing.
        """
