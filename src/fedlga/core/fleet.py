"""What a fleet is: it says how much of its work each selected device gets done in time.

Nothing else in the package knows about speed. Every draw comes from (seed, round, device) alone, so all methods and
policies meet the same fleet. The fleets themselves are in `fedlga.fleets`.
"""

from __future__ import annotations

import math
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
    seconds: float  # simulated, from its start to its report, for all the steps asked
    lost: bool = False  # it never answers, however long the aggregator waits
    download: float = 0.0  # of these seconds, before the first step
    upload: float = 0.0  # and after the last

    @property
    def slow(self) -> bool:
        """Whether its work is unfinished at the deadline."""
        return not self.lost and self.steps < self.steps_asked

    def steps_after(self, seconds: float) -> int:
        """Return the steps that are done so long after the start."""
        if seconds < self.download:
            return 0
        computing = self.seconds - self.download - self.upload
        if not computing > 0:
            return self.steps_asked
        return min(self.steps_asked, whole_steps((seconds - self.download) * self.steps_asked / computing))

    def as_lost(self) -> Effort:
        """Return what becomes of it if the device never answers."""
        return replace(self, steps=0, lost=True)


def whole_steps(steps: float) -> int:
    """Round down, but take 2.9999999999 as 3 that went through a division."""
    return math.floor(steps + 1e-9)


@dataclass(frozen=True)
class Workload:
    """What a fleet is given: the work of each device and the time for it."""

    seed: int
    steps: Sequence[int]  # that each device is asked for in a round: E units
    epochs: int  # E
    deadline: float  # seconds
    dropout: float = 0.0  # chance that a device sends nothing in a round
    held: Array | None = None  # devices x classes: how many examples of each class a device holds; None: unknown
    bytes_down: int = 0  # that a device gets for an assignment
    bytes_up: int = 0  # that it sends back

    @property
    def devices(self) -> int:
        """The number of devices."""
        return len(self.steps)


@dataclass(frozen=True)
class Fleet(ABC):
    """A frozen dataclass: the workload, and a fleet's own settings. A subclass implements `efforts`."""

    workload: Workload

    real: ClassVar[bool] = False  # devices are as slow as they are, and the deadline is in seconds of the clock
    draws_together: ClassVar[bool] = False  # what a device can do depends on who else is drawn in the same round

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
        return [e.as_lost() if self._drops_out(round, e.device) else e for e in efforts]

    def present(self, clock: float) -> Sequence[int] | None:
        """Return the devices that can be selected at this simulated time, in order; None: all, at any time."""
        return None

    def next_arrival(self, clock: float) -> float:
        """Return when the next device comes, after now."""
        return clock

    def leaves(self, device: int, clock: float) -> float:
        """Return for how many seconds from now a device that is there stays: what it does longer is lost."""
        return math.inf

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


@dataclass(frozen=True)
class SteadyFleet(Fleet):
    """A fleet whose devices can do the same in every round. A subclass implements `effort`."""

    @abstractmethod
    def effort(self, device: int) -> Effort:
        """Return what a device would do in any round, ignoring drop-outs."""

    def efforts(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        return [self.effort(device) for device in devices]

    def always_slow(self) -> list[int]:  # noqa: D102
        return [device for device in range(self.workload.devices) if self.effort(device).slow]
