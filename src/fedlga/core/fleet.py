"""What a fleet is: it says how much of its work each selected device gets done in time.

Nothing else in the package knows about speed. Every draw comes from (seed, round, device) alone, so all methods and
policies meet the same fleet. The fleets themselves are in `fedlga.fleets`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedlga.core.randomness import Stream, generator

if TYPE_CHECKING:
    from fedlga.core.types import Array


@dataclass(frozen=True)
class Effort:
    """What one device can do in one round."""

    device: int
    steps: int  # done by the deadline
    steps_asked: int
    seconds: float  # simulated, for all the steps asked
    lost: bool = False  # it never answers, however long the aggregator waits

    @property
    def slow(self) -> bool:
        """Whether its work is unfinished at the deadline."""
        return not self.lost and self.steps < self.steps_asked


@dataclass(frozen=True)
class Workload:
    """What a fleet is given: the work of each device and the time for it."""

    seed: int
    steps: Sequence[int]  # that each device is asked for in a round: E units
    epochs: int  # E
    deadline: float  # seconds
    dropout: float = 0.0  # chance that a device sends nothing in a round
    held: Array | None = None  # devices x classes: how many examples of each class a device holds; None: unknown

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.steps)


@dataclass(frozen=True)
class Fleet(ABC):
    """A frozen dataclass: the workload, and a fleet's own settings. A subclass implements `efforts`."""

    workload: Workload

    real: ClassVar[bool] = False  # devices are as slow as they are, and the deadline is in seconds of the clock

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with open defaults filled in; BadInput if they do not fit the rest of the experiment."""
        return dict(settings)

    @classmethod
    def describe(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:
        """Return who is slow, in a few words, for headlines."""
        return cls.__name__

    @abstractmethod
    def efforts(self, round: int, devices: Sequence[int]) -> list[Effort]:
        """Return what each of the selected devices would do, in their order, ignoring drop-outs."""

    def always_slow(self) -> list[int]:
        """Return the devices that never finish in time, if that is known before the run."""
        return []

    def draw(self, round: int, devices: Sequence[int]) -> list[Effort]:
        """Return what each of the selected devices does in this round, drop-outs included."""
        efforts = self.efforts(round, devices)
        return [replace(e, steps=0, lost=True) if self._drops_out(round, e.device) else e for e in efforts]

    def _drops_out(self, round: int, device: int) -> bool:
        chance = self.workload.dropout
        return chance > 0 and generator(self.workload.seed, Stream.DROPOUT, round, device).random() < chance

    def seconds(self, efforts: Sequence[Effort], *, waits: bool) -> float:
        """Return what a round costs: the slowest device if the aggregator waits for it, else the deadline.

        The aggregator never waits longer than needed: a round is over when all selected devices have reported.
        """
        deadline = self.workload.deadline
        slowest = max((e.seconds for e in efforts if not e.lost), default=deadline)
        if waits:
            return slowest
        return deadline if any(e.lost for e in efforts) else min(deadline, slowest)
