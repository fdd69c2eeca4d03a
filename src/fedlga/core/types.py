"""The words of a federation: what the aggregator sends, what a device answers, what a run is, what a round leaves."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Vector = torch.Tensor  # flat float32; the whole model is one vector
    Memory = Mapping[str, Vector]  # named vectors that live on from round to round


@dataclass(frozen=True)
class Task:
    """Aggregator -> device: start from `w` and do `steps` of the `steps_asked` SGD steps at rate `lr`."""

    round: int
    device: int
    w: Vector
    steps: int  # what the device gets done before the aggregator stops waiting
    steps_asked: int  # the full work: E units
    lr: float  # this round's rate, after any decay
    momentum: float
    seed: int
    shared: Memory  # what the method sends along with the weights
    audit: bool = False  # in simulation: also find out what the full work would have given
    seconds: float | None = None  # of real time that the device has; None: as long as the steps take


@dataclass(frozen=True)
class Update:
    """Device -> aggregator: how far the weights moved, and the work that was really done."""

    device: int
    delta: Vector  # w_local - w_sent, as the device sent it
    examples: int
    steps: int  # measured by the device, never recomputed from a configuration
    steps_asked: int
    train_loss: float
    extra: Memory  # the method's own uploads
    lr: float
    momentum: float
    weight: float = 1.0  # in this round's mean, before dividing by the sum of all weights
    share: float = 0.0  # of the whole federation: 1/N, or examples over everyone's examples
    scale: float = 1.0  # what completing multiplies delta by: wherever delta is averaged, it counts scale * delta
    truth: Vector | None = None  # audited: the delta of the full work, which no real device would send
    seconds: float | None = None  # that a real device was at work, by its own clock

    @property
    def finished(self) -> bool:
        """Whether the device did all it was asked for."""
        return self.steps >= self.steps_asked

    def light(self) -> Update:
        """Without its vectors, for whoever only takes notes."""
        return dataclasses.replace(self, delta=self.delta.new_empty(0), extra={}, truth=None)


@dataclass(frozen=True)
class Local:
    """What a method adds to every gradient on the device: constant + pull * (w_local - w_sent)."""

    constant: Vector | None = None
    pull: float = 0.0


@dataclass(frozen=True)
class Server:
    """All that a run is, but for what devices remember."""

    round: int  # rounds done
    w: Vector
    memory: Memory = field(default_factory=dict[str, "Vector"])


class Backend(Protocol):
    """Where devices live. It runs their tasks and keeps what each device remembers from round to round."""

    def run(self, tasks: Sequence[Task]) -> Iterable[Update]:
        """Updates in the order of the tasks, each as soon as it is there; valid until the next call."""
        ...

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """What each device remembers, for a checkpoint."""
        ...

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""
        ...

    def close(self) -> None:
        """Let go of processes and files."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """How good some weights are, on test data; None where nobody looked."""

    accuracy: float | None = None
    loss: float | None = None
    accuracy_slow: float | None = None
    accuracy_worst: float | None = None


@dataclass(frozen=True)
class Record:
    """What one round leaves behind: a line of rounds.jsonl."""

    round: int  # counted from 1
    accuracy: float | None  # on the test data; None in rounds without an evaluation
    loss: float | None
    accuracy_slow: float | None  # on data like that of the devices that are always slow, where there are such
    accuracy_worst: float | None  # on data like that of the device it serves worst
    train_loss: float | None  # mean over the devices that reported; None when nobody did
    seconds: float
    simulated_seconds: float
    lr: float
    devices: list[int]  # the selected, in the order of selection
    steps: list[int]  # what each got done by the end of the round; 0: it sent nothing
    steps_asked: list[int]
    slow: list[int]  # devices that sent unfinished work, or would have
    absent: list[int]  # devices that sent nothing
    used: list[int]  # devices whose update went into the mean
    scales: dict[int, float | None]  # completed devices: what their update was multiplied by
    growth: float | None = None  # exponent of the growth law, where completion used one
    agreement: float | None = None  # mean cosine of updates and the same devices' last ones, where completion used it
    clipped: dict[int, str] = field(
        default_factory=dict[int, str]
    )  # completed devices whose scale was held back, and why
    late: list[int] = field(
        default_factory=list[int]
    )  # devices whose answer to an earlier round came in this one, unused
    refused: dict[int, str] = field(default_factory=dict[int, str])  # devices that sent what cannot be, and why
    device_seconds: dict[int, float] = field(
        default_factory=dict[int, float]
    )  # real devices: how long each was at work
    audit: dict[str, Any] | None = None  # how close completion came to the truth: see audit.py
    note: str | None = None  # anything out of the ordinary, in words

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which knows no not-a-number: those become None."""
        return _clean(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """The record that `as_dict` wrote; JSON turned devices that are keys into text."""
        names = ("scales", "clipped", "refused", "device_seconds")
        by_device = {name: {int(k): v for k, v in values.get(name, {}).items()} for name in names}
        fields: dict[str, Any] = {**values, **by_device}
        return cls(**fields)


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _clean(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
