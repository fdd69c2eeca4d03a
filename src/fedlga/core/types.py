"""The data of one round: what the aggregator sends, what a device sends back, how it counts, what is recorded."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    Array = NDArray[Any]
    Vector = torch.Tensor  # flat float32; the whole model is one vector
    Memory = Mapping[str, Vector]  # named vectors that are kept from round to round


@dataclass(frozen=True)
class Assignment:
    """Aggregator -> device: start from `w` and do `steps` of the `steps_asked` SGD steps at rate `lr`."""

    round: int
    device: int
    w: Vector
    steps: int  # what the device gets done before the aggregator stops waiting
    steps_asked: int  # the full local work: E units
    lr: float  # this round's rate, after any decay
    momentum: float
    seed: int
    broadcast: Memory  # vectors that the method sends along with the weights
    buffers: Vector | None = None  # of layers such as BatchNorm: what training changes besides the weights
    audit: bool = False  # simulation only: also compute what the full work would have given
    seconds: float | None = None  # real time that the device has; None: as long as the steps take
    exponent: float | None = None  # private completing: the device multiplies its unfinished work by (all / done)^this
    longest: float | None = None  # and makes it no longer than this

    def numbers(self) -> dict[str, Any]:
        """All fields but the vectors: what a message carries as plain values."""
        vectors = ("w", "broadcast", "buffers")
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in vectors}


@dataclass(frozen=True)
class Update:
    """Device -> aggregator: how far the weights moved, and the work that was really done. It never changes."""

    device: int
    delta: Vector  # w_local - w_sent, as the device sent it
    examples: int
    steps: int  # counted by the device, never recomputed from a configuration
    steps_asked: int
    train_loss: float
    uploads: Memory  # the method's own vectors
    lr: float
    momentum: float
    buffers: Vector | None = None  # the buffers after training, if the model has some: not a difference
    truth: Vector | None = None  # audit: the delta of the full work, which no real device would send
    seconds: float | None = None  # how long a real device was at work, by its own clock
    scaled: float = 1.0  # private completing: what the device multiplied delta by
    length: float | None = None  # and how long delta was before

    @property
    def finished(self) -> bool:
        """Whether the device did all it was asked for."""
        return self.steps >= self.steps_asked

    def numbers(self) -> dict[str, Any]:
        """All fields but the vectors: what a message carries as plain values."""
        vectors = ("delta", "uploads", "buffers", "truth")
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in vectors}

    def copied(self) -> Update:
        """Return a copy with vectors of its own: those of a backend are valid until its next run only."""
        uploads = {name: vector.clone() for name, vector in self.uploads.items()}
        others = {
            name: None if v is None else v.clone() for name, v in (("buffers", self.buffers), ("truth", self.truth))
        }
        return dataclasses.replace(self, delta=self.delta.clone(), uploads=uploads, **others)

    def without_vectors(self) -> Update:
        """Return a copy that holds no large data, for the record."""
        return dataclasses.replace(self, delta=self.delta.new_empty(0), uploads={}, buffers=None, truth=None)


@dataclass(frozen=True)
class Contribution:
    """An update and how it counts: what the aggregator adds stands here, around the update as it was sent."""

    update: Update
    weight: float = 1.0  # in this round's mean, before dividing by the sum of all weights; discounted if stale
    share: float = 0.0  # the device's part of the whole federation: 1/N, or its part of all examples
    scale: float = 1.0  # completing multiplies delta by it: wherever delta is averaged, it counts scale * delta
    completed: bool = False  # the work counts as finished
    discount: float = 1.0  # what staleness left of the weight; the mean is damped by the mean of it
    staleness: int = 0  # the aggregator's steps since the device began

    @property
    def steps(self) -> int:
        """The steps that the update counts for: all that were asked for, if it was completed."""
        return self.update.steps_asked if self.completed else self.update.steps

    def without_vectors(self) -> Contribution:
        """Return a copy that holds no large data, for the record."""
        return dataclasses.replace(self, update=self.update.without_vectors())


@dataclass(frozen=True)
class Local:
    """What a method adds to every gradient on the device: constant + pull * (w_local - w_sent)."""

    constant: Vector | None = None
    pull: float = 0.0


@dataclass(frozen=True)
class Job:
    """A device at work, in simulated time."""

    device: int
    round: int  # the rounds that were done when it started: whose weights it works on
    steps: int  # that it will have done when it ends
    steps_asked: int
    started: float  # seconds since the run began
    lasts: float  # seconds
    lost: bool = False  # it will send nothing
    slow: bool = False  # its work is unfinished at the deadline

    @property
    def ends(self) -> float:
        """When it reports, or is lost."""
        return self.started + self.lasts


@dataclass(frozen=True)
class Weights:
    """What devices start from."""

    w: Vector
    buffers: Vector | None = None


@dataclass(frozen=True)
class ServerState:
    """The state of a run, except for what devices remember."""

    round: int  # rounds done
    w: Vector
    memory: Memory = field(default_factory=dict[str, "Vector"])
    buffers: Vector | None = None  # of the joint model: means of what devices' training made of them
    clock: float = 0.0  # simulated seconds since the run began
    jobs: tuple[Job, ...] = ()  # devices that are at work between two steps
    earlier: Mapping[int, Weights] = field(default_factory=dict[int, Weights])  # what those began from, by their round


Metrics = dict[str, float | None]  # by name; None where it was not measured: {"accuracy": 0.7, "accuracy_slow": None}

RECORD_VERSION = 3  # 1 had no version, no `diverged` and no `bounded`; 1 and 2 knew one metric, accuracy
_METRICS_BEFORE_3 = ("accuracy", "loss", "accuracy_slow", "accuracy_worst")
_DIVERGED_IN_VERSION_1 = "the weights are no longer finite numbers: the run stops here"


@dataclass(frozen=True)
class Record:
    """What one round leaves behind: a line of rounds.jsonl.

    Each metric can be read like a field: record.accuracy, record.loss. NAME is on the test data, NAME_slow on data of
    the devices that are always slow, NAME_worst on data of the device that the model serves worst.
    """

    round: int  # counted from 1
    metrics: Metrics  # on the test data; all None in rounds without an evaluation
    train_loss: float | None  # mean over the devices that reported; None if none did
    seconds: float
    simulated_seconds: float
    lr: float
    devices: list[int]  # the selected ones, in the order of selection
    steps: list[int]  # what each got done by the end of the round; 0: it sent nothing
    steps_asked: list[int]
    slow: list[int]  # devices that sent unfinished work, or would have
    absent: list[int]  # devices that sent nothing
    used: list[int]  # devices whose update went into the aggregate
    scales: dict[int, float | None]  # completed devices: what their update was multiplied by
    growth: float | None = None  # exponent of the growth law, if completion used one
    agreement: float | None = None  # mean cosine of updates and the same devices' last ones, if completion used it
    clipped: dict[int, str] = field(default_factory=dict[int, str])  # devices whose scale was limited, and why
    bounded: dict[int, float | None] = field(default_factory=dict[int, float | None])  # what shortened long updates
    late: list[int] = field(default_factory=list[int])  # devices whose reply to an earlier round arrived now, unused
    refused: dict[int, str] = field(default_factory=dict[int, str])  # devices whose reply was not valid, and why
    duplicates: dict[int, str] = field(default_factory=dict[int, str])  # devices that another node said it was
    ignored: int = 0  # replies that nobody had asked for
    resting: list[int] = field(default_factory=list[int])  # repeat offenders, which could not be selected
    device_seconds: dict[int, float | None] = field(default_factory=dict[int, float | None])  # simulated, or real
    staleness: dict[int, int] = field(default_factory=dict[int, int])  # used updates that began earlier: steps since
    wasted: list[int] = field(default_factory=list[int])  # devices that worked, and whose work was thrown away
    steps_wasted: int = 0  # that these did
    bytes_down: int = 0  # of weights and what goes with them, to all devices that were asked
    bytes_up: int = 0  # of updates, from all devices that sent one
    audit: dict[str, Any] | None = None  # how close completion came to the truth: see audit.py
    train_objective: float | None = None  # f(w): mean loss on all training data, if `record` asks for it
    squared_gradient: float | None = None  # |grad f(w)|^2, likewise
    diverged: bool = False  # the weights are no longer finite: the run ends here
    note: str | None = None  # anything unusual, for a human reader; nothing is decided by it
    others: dict[str, Any] = field(default_factory=dict[str, Any])  # fields that this version does not know

    def __getattr__(self, name: str) -> float | None:
        metrics = self.__dict__.get("metrics", {})
        if name not in metrics:
            raise AttributeError(f"a record has no {name!r}; its metrics are {', '.join(metrics) or 'not there'}")
        return metrics[name]

    @property
    def work_seconds(self) -> float:
        """How long devices were at work, all together."""
        return sum(seconds for seconds in self.device_seconds.values() if seconds is not None)

    @property
    def steps_done(self) -> int:
        """The steps of all devices."""
        return sum(self.steps)

    @property
    def megabytes(self) -> float:
        """What was sent, in both directions."""
        return (self.bytes_down + self.bytes_up) / 1e6

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which has no not-a-number: those become None.

        Metrics stand among the fields, by their names; the field `metrics` lists the names.
        """
        values = _replace_non_finite(dataclasses.asdict(self))
        round, metrics, others = values.pop("round"), values.pop("metrics"), values.pop("others")
        return {**others, "version": RECORD_VERSION, "round": round, "metrics": list(metrics), **metrics, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Return the record that `as_dict` wrote, of this version or an earlier one; BadInput for anything else.

        Fields that are not known are carried along.
        """
        fields = dict(values)
        version = fields.pop("version", 1)
        if version not in range(1, RECORD_VERSION + 1):
            raise BadInput(f"record: got version {version!r}; this fedlga reads 1 to {RECORD_VERSION}")
        if version == 1:
            fields["diverged"] = str(fields.get("note")).startswith(_DIVERGED_IN_VERSION_1)
        fields["metrics"] = _take_metrics(fields, version)
        known, required = _list_record_fields()
        unknown = [name for name in fields if name == "others" or name not in known]
        fields["others"] = {name: fields.pop(name) for name in unknown}  # of another version: they are kept
        if missing := required - set(fields):
            raise BadInput(f"record: no field {sorted(missing)[0]!r}")
        for name in ("scales", "clipped", "bounded", "refused", "duplicates", "device_seconds", "staleness"):
            if name in fields:  # JSON turned the device numbers into text
                fields[name] = {int(device): value for device, value in fields[name].items()}
        return cls(**fields)


@functools.cache
def _list_record_fields() -> tuple[set[str], set[str]]:
    """Return the names of a record's fields, and of those that must be there."""
    fields, absent = dataclasses.fields(Record), dataclasses.MISSING
    return {f.name for f in fields}, {f.name for f in fields if absent is f.default is f.default_factory}


def _take_metrics(fields: dict[str, Any], version: int) -> dict[str, Any]:
    """Take a record's metrics out of its fields: those that the field `metrics` lists, before version 3 always four."""
    if version < 3:  # noqa: PLR2004
        if missing := [name for name in _METRICS_BEFORE_3 if name not in fields]:
            raise BadInput(f"record: no field {missing[0]!r}")
        if "metrics" in fields:
            raise BadInput("record: unknown field 'metrics'")
        return {name: fields.pop(name) for name in _METRICS_BEFORE_3}
    given = fields.pop("metrics", None)
    names = [name for name in cast("list[Any]", given) if isinstance(name, str)] if isinstance(given, list) else []
    if not isinstance(given, list) or len(set(names) & set(fields)) < len(cast("list[Any]", given)):
        raise BadInput("record: the field 'metrics' does not list metrics that are there")
    return {name: fields.pop(name) for name in names}


def _replace_non_finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _replace_non_finite(inner) for key, inner in cast("dict[Any, Any]", value).items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
