"""Assignments and updates as Flower messages, and the checks that a reply must pass before it is averaged.

Aggregator -> device: the weights and what the method sends along, the assignment's numbers, and a set-up.
Device -> aggregator: delta and the method's uploads, and seven numbers. Nothing else crosses.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedlga.core.aggregator import BUFFERS
from fedlga.core.completion.private import scale_own
from fedlga.core.guard import LONGEST
from fedlga.core.settings import BadInput
from fedlga.core.text import clean_text
from fedlga.core.types import Assignment, Update

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fedlga.core.types import Memory, Vector

VECTORS, NUMBERS, SETUP = "vectors", "numbers", "setup"
# All the numbers that a device sends.
REPORTED = ("round", "device", "steps", "steps_asked", "examples", "train_loss", "seconds")
REPORTED_IN_PRIVATE = ("scaled", "length")  # these too, if it completed its own update
MOST_EXAMPLES = 2**40  # of one device: a larger weight could dominate the average
TOLERANCE = 1e-6  # of a scale: devices compute powers of their own
LONGEST_HEADER = 1024  # bytes of an array besides its numbers


class Refused(Exception):
    """A reply that must not reach the model; the message says why, in one line of moderate length."""

    def __init__(self, message: str) -> None:
        """What a stranger sent may be in the message: it gets no line breaks, and no more room than others."""
        super().__init__(clean_text(message))


@contextmanager
def reading_a_reply() -> Generator[None]:
    """Refuse a reply whatever error reading it raises: a stranger chose what is in it, and it must not end the run."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"it cannot be read ({type(error).__name__})") from error


def pack_assignment(assignment: Assignment, setup: ConfigRecord) -> RecordDict:
    """Return an assignment as it is sent; `setup` is the same for all devices."""
    numbers = {name: value for name, value in assignment.numbers().items() if value is not None}
    buffers = {} if assignment.buffers is None else {BUFFERS: assignment.buffers}
    vectors = pack_vectors({"w": assignment.w, **assignment.broadcast, **buffers})
    return RecordDict({VECTORS: vectors, NUMBERS: ConfigRecord(numbers), SETUP: setup})


def unpack_assignment(message: Message) -> Assignment:
    """Return the assignment that a message brings."""
    try:
        vectors = unpack_vectors(message.content.array_records[VECTORS])
        numbers: dict[str, Any] = dict(message.content.config_records[NUMBERS])
        w, buffers = vectors.pop("w"), vectors.pop(BUFFERS, None)
        return Assignment(w=w, broadcast=vectors, buffers=buffers, **numbers)
    except Exception as error:  # unknown bytes may make a reader raise anything
        raise BadInput(f"assignment: it does not have the agreed form ({type(error).__name__})") from error


def pack_update(update: Update, round: int, seconds: float) -> RecordDict:
    """Return an update as it is sent back."""
    vectors = {"delta": update.delta, **update.uploads}
    if update.truth is not None:
        vectors["truth"] = update.truth
    if update.buffers is not None:
        vectors[BUFFERS] = update.buffers
    numbers = {**update.numbers(), "round": round, "seconds": seconds}
    names = REPORTED if update.length is None else (*REPORTED, *REPORTED_IN_PRIVATE)
    reported = MetricRecord({name: numbers[name] for name in names})
    return RecordDict({VECTORS: pack_vectors(vectors), NUMBERS: reported})


def unpack_update(content: RecordDict, assignment: Assignment, uploads: tuple[str, ...]) -> Update:
    """Return the update that a reply brings; Refused if it cannot be right. `uploads` are the method's."""
    private = assignment.exponent is not None
    numbers = _numbers(content, (*REPORTED, *REPORTED_IN_PRIVATE) if private else REPORTED)
    for name, expected in (
        ("round", assignment.round),
        ("device", assignment.device),
        ("steps_asked", assignment.steps_asked),
    ):
        if numbers[name] != expected:
            raise Refused(f"it replies to {name} {numbers[name]:g}, and was asked for {expected}")
    for name, least, most in (("steps", 0, math.inf), ("examples", 1, MOST_EXAMPLES)):
        if numbers[name] != int(numbers[name]) or not least <= numbers[name] <= most:
            raise Refused(f"it says {name} {numbers[name]:g}")
    if numbers["steps"] > assignment.steps:
        raise Refused(f"it claims {numbers['steps']:g} steps, and was asked for {assignment.steps}")
    if private:
        most = scale_own(replace(assignment, longest=None), int(numbers["steps"]), numbers["length"])
        if not 0 <= numbers["length"] <= LONGEST or not 1 <= numbers["scaled"] <= most * (1 + TOLERANCE):
            raise Refused(f"it says scaled {numbers['scaled']:g} and length {numbers['length']:g}")
    names = ["delta", *uploads, *(["truth"] if assignment.audit and numbers["steps"] < assignment.steps_asked else [])]
    lengths = dict.fromkeys(names, len(assignment.w))
    lengths |= {} if assignment.buffers is None else {BUFFERS: len(assignment.buffers)}
    vectors = check_vectors(content.array_records.get(VECTORS), lengths)
    return Update(
        device=assignment.device,
        delta=vectors["delta"],
        examples=int(numbers["examples"]),
        steps=int(numbers["steps"]),
        steps_asked=assignment.steps_asked,
        train_loss=float(numbers["train_loss"]),
        uploads={name: vectors[name] for name in uploads},
        lr=assignment.lr,  # the aggregator's own number, not the device's
        momentum=assignment.momentum,
        buffers=vectors.get(BUFFERS),
        truth=vectors.get("truth"),
        seconds=numbers["seconds"],
        scaled=numbers.get("scaled", 1.0),
        length=numbers.get("length"),
    )


def most_bytes_of_update(assignment: Assignment, uploads: tuple[str, ...]) -> int:
    """Return how many bytes the arrays of a good reply can have."""
    vectors = 1 + len(uploads) + assignment.audit
    buffers = () if assignment.buffers is None else (assignment.buffers,)
    numbers = vectors * assignment.w.nbytes + sum(vector.nbytes for vector in buffers)
    return numbers + (vectors + len(buffers)) * LONGEST_HEADER


def _numbers(content: RecordDict, names: Sequence[str]) -> Mapping[str, float]:
    numbers = content.metric_records.get(NUMBERS)
    if numbers is None or set(content) != {VECTORS, NUMBERS} or set(numbers) != set(names):
        raise Refused("it does not have the agreed form")
    values: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, list) or not (math.isfinite(value) or name == "train_loss"):
            raise Refused(f"it says {name} {value}")
        values[name] = value
    return values


def check_vectors(record: ArrayRecord | None, lengths: Mapping[str, int]) -> dict[str, Vector]:
    """Return the named vectors of a reply; Refused unless all are there, of the right length, and finite."""
    if record is None or set(record) != set(lengths):
        raise Refused(f"it sent {', '.join(record or {}) or 'nothing'}, and was asked for {', '.join(lengths)}")
    for name, array in record.items():
        if tuple(array.shape) != (lengths[name],) or array.dtype != "float32":
            shape = " x ".join(map(str, array.shape))
            raise Refused(f"{name} is {shape} of {array.dtype}, and the model {lengths[name]} of float32")
    return {name: torch.from_numpy(check_array(name, array)).clone() for name, array in record.items()}


def check_array(name: str, array: Array) -> NDArray[Any]:
    """Return what an array holds; Refused unless it is what its header says, and finite."""
    size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    if array.stype != "numpy.ndarray" or not size <= len(array.data) <= size + LONGEST_HEADER:
        raise Refused(f"{name} is not what it is said to be")
    try:
        content: Any = array.numpy()  # may be an archive, if that was sent
    except Exception as error:  # unknown bytes may make a reader raise anything
        raise Refused(f"{name} cannot be read ({type(error).__name__})") from error
    shape, dtype = tuple(array.shape), np.dtype(array.dtype)
    if not isinstance(content, np.ndarray) or content.shape != shape or content.dtype != dtype:
        raise Refused(f"{name} is not what it is said to be")
    values = cast("NDArray[Any]", content)
    if not bool(np.isfinite(values).all()):
        raise Refused(f"{name} holds what is not a number")
    return values


def pack_vectors(vectors: Memory) -> ArrayRecord:
    """Return vectors for a message."""
    return ArrayRecord({name: Array(np.ascontiguousarray(vector.numpy())) for name, vector in vectors.items()})


def unpack_vectors(record: ArrayRecord) -> dict[str, Vector]:
    """Return the vectors of a message, as copies aligned as torch aligns: the last bit of a sum may depend on it."""
    return {name: torch.from_numpy(array.numpy()).clone() for name, array in record.items()}
