"""Who trains on what, and what is held out for testing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlga.core.randomness import Stream, generator
from fedlga.core.settings import BadInput
from fedlga.learning.partitions.base import Partition, count_classes, make_parts
from fedlga.learning.partitions.own import OwnPartition, id_column

if TYPE_CHECKING:
    from fedlga.core.types import Array
    from fedlga.learning.evaluation import Ranges
    from fedlga.learning.examples import Examples
    from fedlga.learning.reading import TaskData

HELD_OUT = 5  # one of so many examples is for testing


@dataclass(frozen=True)
class Split:
    """A task's data, given to devices and to the test."""

    train: Examples
    parts: Sequence[Array]  # rows of `train` that each device holds
    test: Examples
    ranges: Ranges | None  # the test examples that each device held out; None: the test data is nobody's
    labels: Array | None  # of `train`, if every example has one class
    classes: int | None
    test_rows: Array | None = None  # of `train`, if the test examples were held out of it

    @cached_property
    def held(self) -> Array | None:
        """Devices x classes: how many examples of each class a device trains on; None without classes."""
        if self.labels is None or self.classes is None:
            return None
        return count_classes(self.parts, self.labels, self.classes)


def split_examples(
    data: TaskData, partition: Partition, devices: int, seed: int, classes: int | None, *, own_tests: bool = False
) -> Split:
    """Divide the data between devices and the test: the same for every method with this seed.

    Without a test set, a fifth is held out: of every device's own data if the data came by device, if a partitioner
    goes by whose it is, if there are no classes, or if `own_tests` asks for it; otherwise of all data, before devices
    get the rest.
    """
    own = isinstance(partition, OwnPartition) and partition.given is not None  # it may look at them
    labels = find_labels(data.train, classes, needed=partition.needs_classes or own)
    if partition.needs_classes and labels is None:
        raise BadInput(
            "partition: it divides the data by classes, and the targets are not one class an example; "
            "it takes iid, quantity or own"
        )
    if isinstance(partition, OwnPartition) and data.parts is not None:
        if devices != len(data.parts):
            raise BadInput(f"devices: got {devices}; the data comes in {len(data.parts)} parts, one a device")
        return _split_natural(data, labels, classes, seed)
    targets = find_targets(data, labels, needed=own)
    if data.test is not None:
        parts = make_parts(partition, targets, classes or 0, devices, seed)
        return Split(data.train, parts, data.test, None, labels, classes)
    natural = isinstance(partition, OwnPartition) and id_column(partition.given) is not None
    if labels is None or own_tests or natural:
        parts = make_parts(partition, targets, classes or 0, devices, seed)
        return _hold_out_of_each(data.train, parts, labels, classes, seed)
    order = generator(seed, Stream.HOLD_OUT).permutation(len(targets))
    tested = max(1, len(targets) // HELD_OUT)
    test, train = np.sort(order[:tested]), np.sort(order[tested:])
    if len(train) == 0:
        raise BadInput("data(): got one example; it takes two at least, one to train and one to test on")
    if isinstance(partition, OwnPartition):
        partition = replace(partition, rows=train)
    chosen = make_parts(partition, targets[train], classes or 0, devices, seed)
    return Split(data.train, [train[part] for part in chosen], data.train.take(test), None, labels, classes, test)


def find_labels(examples: Examples, classes: int | None, *, needed: bool) -> Array | None:
    """Return every example's class, if there are classes and reading them is quick, or needed."""
    if classes is None or not (examples.knows_targets or needed):
        return None
    return examples.targets().cpu().numpy()


def find_targets(data: TaskData, labels: Array | None, *, needed: bool) -> Array:
    """Return what a partition gets: labels, number targets, or zeros if targets are no single array."""
    if labels is not None:
        return labels
    targets = data.train.targets() if needed or data.train.in_memory is not None else None
    if not isinstance(targets, torch.Tensor):
        return np.zeros(len(data.train))
    return (targets.float() if targets.dtype == torch.bfloat16 else targets).cpu().numpy()  # numpy has no bfloat16


def _split_natural(data: TaskData, labels: Array | None, classes: int | None, seed: int) -> Split:
    assert data.parts is not None
    if data.test is None:
        return _hold_out_of_each(data.train, data.parts, labels, classes, seed)
    if data.test_parts is None:
        return Split(data.train, data.parts, data.test, None, labels, classes)
    return Split(data.train, data.parts, data.test, _ranges(data.test_parts), labels, classes)


def _hold_out_of_each(
    train: Examples, parts: Sequence[Array], labels: Array | None, classes: int | None, seed: int
) -> Split:
    """Let every device hold out a fifth of its own examples; a device with one example trains on it."""
    kept: list[Array] = []
    tested: list[Array] = []
    for device, part in enumerate(parts):
        own_test, own_train = hold_out(seed, device, part)
        tested.append(own_test)
        kept.append(own_train)
    rows = np.concatenate(tested)
    if len(rows) == 0:
        raise BadInput("data(): every device has one example, so none is left for a test; it takes train and test")
    return Split(train, kept, train.take(rows), _ranges(tested), labels, classes, rows)


def hold_out(seed: int, device: int, part: Array) -> tuple[Array, Array]:
    """Return which rows of its own a device tests on, and which it trains on: all, if it has one."""
    order = generator(seed, Stream.HOLD_OUT, device).permutation(part)
    count = max(1, len(part) // HELD_OUT) if len(part) > 1 else 0
    return np.sort(order[:count]), np.sort(order[count:])


def _ranges(parts: Sequence[Array]) -> Ranges:
    ends = np.cumsum([len(part) for part in parts])
    return [(int(end) - len(part), int(end)) for end, part in zip(ends, parts, strict=True)]
