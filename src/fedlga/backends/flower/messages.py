"""Tasks and updates as Flower messages, and the checks a stranger's answer must pass before anybody averages it.

Aggregator -> device: the weights and what the method sends along, the task's numbers, and a set-up.
Device -> aggregator: delta and the method's uploads, and seven numbers. Nothing else crosses.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from ..types import Task, Update

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..types import Memory, Vector

VECTORS, NUMBERS, SETUP = "vectors", "numbers", "setup"
TOLD = ("round", "device", "steps", "steps_asked", "examples", "train_loss", "seconds")  # all that a device says


MOST_EXAMPLES = 2**40  # that a device can have: a weight beyond would be everybody's
LONGEST_HEADER = 1024  # bytes of an array besides its numbers


class Refused(Exception):
    """An answer that must not reach the model; the message says why."""


def task_content(task: Task, setup: ConfigRecord) -> RecordDict:
    """A task as it is sent; `setup` goes to everyone alike."""
    numbers = {
        f.name: value
        for f in dataclasses.fields(task)
        if f.name not in ("w", "shared") and (value := getattr(task, f.name)) is not None
    }
    vectors = packed({"w": task.w, **task.shared})
    return RecordDict({VECTORS: vectors, NUMBERS: ConfigRecord(numbers), SETUP: setup})


def task_of(message: Message) -> Task:
    """The task that a message brings."""
    vectors = unpacked(message.content.array_records[VECTORS])
    numbers: dict[str, Any] = dict(message.content.config_records[NUMBERS])
    return Task(w=vectors.pop("w"), shared=vectors, **numbers)


def update_content(update: Update, round: int, seconds: float) -> RecordDict:
    """An update as it is sent back."""
    vectors = {"delta": update.delta, **update.extra}
    if update.truth is not None:
        vectors["truth"] = update.truth
    told = {**vars(update), "round": round, "seconds": seconds}
    return RecordDict({VECTORS: packed(vectors), NUMBERS: MetricRecord({name: told[name] for name in TOLD})})


def update_of(content: RecordDict, task: Task, uploads: tuple[str, ...]) -> Update:
    """The update that an answer to `task` brings, if it is one that can be believed; `uploads` belong to the method."""
    numbers = _numbers(content)
    for name, expected in (("round", task.round), ("device", task.device), ("steps_asked", task.steps_asked)):
        if numbers[name] != expected:
            raise Refused(f"it answers {name} {numbers[name]:g}, and was asked for {expected}")
    for name, least, most in (("steps", 0, math.inf), ("examples", 1, MOST_EXAMPLES)):
        if numbers[name] != int(numbers[name]) or not least <= numbers[name] <= most:
            raise Refused(f"it says {name} {numbers[name]:g}")
    if numbers["steps"] > task.steps:
        raise Refused(f"it claims {numbers['steps']:g} steps, and was asked for {task.steps}")
    names = ["delta", *uploads, *(["truth"] if task.audit and numbers["steps"] < task.steps_asked else [])]
    vectors = checked_vectors(content.array_records.get(VECTORS), names, len(task.w))
    return Update(
        device=task.device,
        delta=vectors["delta"],
        examples=int(numbers["examples"]),
        steps=int(numbers["steps"]),
        steps_asked=task.steps_asked,
        train_loss=float(numbers["train_loss"]),
        extra={name: vectors[name] for name in uploads},
        lr=task.lr,  # which the aggregator knows better than anybody
        momentum=task.momentum,
        truth=vectors.get("truth"),
        seconds=numbers["seconds"],
    )


def _numbers(content: RecordDict) -> Mapping[str, float]:
    numbers = content.metric_records.get(NUMBERS)
    if numbers is None or set(content) != {VECTORS, NUMBERS} or set(numbers) != set(TOLD):
        raise Refused("it is not made as agreed")
    found: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, list) or not (math.isfinite(value) or name == "train_loss"):
            raise Refused(f"it says {name} {value}")
        found[name] = value
    return found


def checked_vectors(record: ArrayRecord | None, names: list[str], length: int) -> dict[str, Vector]:
    """The named vectors of an answer: all there, of the right length, and numbers."""
    if record is None or set(record) != set(names):
        raise Refused(f"it sent {', '.join(record or {}) or 'nothing'}, and was asked for {', '.join(names)}")
    for name, array in record.items():
        if tuple(array.shape) != (length,) or array.dtype != "float32":
            shape = " x ".join(map(str, array.shape))
            raise Refused(f"{name} is {shape} of {array.dtype}, and the model {length} of float32")
    return {name: torch.from_numpy(checked_array(name, array)).clone() for name, array in record.items()}


def checked_array(name: str, array: Array) -> NDArray[Any]:
    """What an array holds, if that is what it is said to be, and all of it numbers."""
    size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
    if array.stype != "numpy.ndarray" or not size <= len(array.data) <= size + LONGEST_HEADER:
        raise Refused(f"{name} is not what it is said to be")
    try:
        read: Any = array.numpy()  # an archive, if a stranger sent one
    except Exception as error:  # whatever a stranger's bytes may bring a reader to
        raise Refused(f"{name} cannot be read ({type(error).__name__})") from error
    if not isinstance(read, np.ndarray) or read.shape != tuple(array.shape) or read.dtype != np.dtype(array.dtype):
        raise Refused(f"{name} is not what it is said to be")
    found = cast("NDArray[Any]", read)
    if not bool(np.isfinite(found).all()):
        raise Refused(f"{name} holds what is not a number")
    return found


def packed(vectors: Memory) -> ArrayRecord:
    """Vectors for a message."""
    return ArrayRecord({name: Array(np.ascontiguousarray(vector.numpy())) for name, vector in vectors.items()})


def unpacked(record: ArrayRecord) -> dict[str, Vector]:
    """And back. Copies, which lie where torch puts tensors of its own: the last bit of a sum may depend on it."""
    return {name: torch.from_numpy(array.numpy()).clone() for name, array in record.items()}
