"""What a backend is: the place where devices run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedlga.core.types import Assignment, Update

if TYPE_CHECKING:
    import torch

    from fedlga.core.types import Memory, Vector


@dataclass(frozen=True)
class Scores:
    """What evaluating weights on the test data gives."""

    values: torch.Tensor  # metrics that examples have x examples x 2: a sum, and what it is to be divided by
    losses: Sequence[tuple[float, float]]  # of each batch: the summed loss, and what it is to be divided by
    outputs: Any = None  # of the model, for all examples, if a metric needs them all at once
    targets: Any = None  # that belong to the outputs, if only the batches know them


@dataclass
class Incidents:
    """What went wrong on real devices since the last round."""

    late: list[int] = field(default_factory=list[int])
    refused: dict[int, str] = field(default_factory=dict[int, str])
    duplicates: dict[int, str] = field(default_factory=dict[int, str])
    ignored: int = 0
    note: str | None = None


class Backend(ABC):
    """Runs devices' assignments, evaluates weights, and keeps what each device remembers from round to round."""

    @abstractmethod
    def present(self) -> Sequence[int]:
        """Return the devices that can be selected now: all of them in a simulation, those connected in a real fleet."""

    @abstractmethod
    def run(self, assignments: Sequence[Assignment]) -> Iterable[Update]:
        """Yield updates in the order of the assignments, each as soon as it is there; valid until the next call."""

    def run_first(self, assignments: Sequence[Assignment], count: int) -> Iterable[Update]:
        """Yield the first `count` good updates that come, in the order of the assignments: of real devices only.

        In a simulation a schedule knows whose these are, and does not ask the others.
        """
        raise NotImplementedError

    def run_buffered(
        self,
        assignments: Sequence[Assignment],
        count: int,
        refill: Callable[[Sequence[int], int], Sequence[Assignment]],
        too_old: Collection[int] = (),
    ) -> Iterable[Update]:
        """Send assignments, and yield updates as they come, until `count` good ones have come: of real devices only.

        Updates of the devices in `too_old` are not among those that count.
        While there is room, `refill` says who starts now, given who is idle and how many work. Devices that have not
        reported go on working, and their updates come in a later call.
        """
        raise NotImplementedError

    def idle(self) -> Sequence[int]:
        """Return the real devices that could start now; perhaps none. It does not wait, other than `present`."""
        return ()

    def at_work(self) -> Sequence[int]:
        """Return the real devices whose updates are still to come in a later call of `run_buffered`."""
        return ()

    @abstractmethod
    def score(self, w: Vector, buffers: Vector | None) -> Scores:
        """Evaluate weights, and the buffers that go with them, on the test data."""

    @abstractmethod
    def memories(self) -> Iterable[tuple[int, Memory]]:
        """Yield what each device remembers, for a checkpoint."""

    @abstractmethod
    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""

    @property
    def parallel(self) -> int:
        """How many assignments are carried out at the same time."""
        return 1

    @property
    def slow(self) -> Sequence[int]:
        """The real devices that showed themselves to be slow. It changes as their updates come."""
        return ()

    def take_incidents(self) -> Incidents:
        """Return what went wrong since the last call. Simulated devices have no incidents."""
        return Incidents()

    @abstractmethod
    def close(self) -> None:
        """Release processes and files."""
