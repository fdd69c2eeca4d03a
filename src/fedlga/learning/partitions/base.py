"""What a partition is: a way to give the training data to devices.

Each example goes to exactly one device; or, with `examples_per_device`, for federations larger than their data, each
device draws examples of its own, and devices may share some.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedlga.core.randomness import Stream, generator
from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from fedlga.core.types import Array

    Part = Array  # the rows of the training data that one device holds


@dataclass(frozen=True)
class Partition(ABC):
    """A frozen dataclass of settings. A subclass implements `split`."""

    needs_classes: ClassVar[bool] = False  # it looks at the labels; other partitions go with any targets

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings; BadInput if they do not fit the rest of the experiment."""
        return dict(settings)

    @property
    def shares_examples(self) -> bool:
        """Whether an example may be held by several devices, so that there may be more devices than examples."""
        return False

    @abstractmethod
    def split(self, labels: Array, classes: int, devices: int, rng: np.random.Generator) -> list[Part]:
        """Return the rows that each device holds, sorted; every device needs at least one.

        A partition that does not need classes gets the targets as they are, and 0 for `classes` if there are none.
        """


def make_parts(partition: Partition, labels: Array, classes: int, devices: int, seed: int) -> list[Part]:
    """Return who holds what: the same for every method with this seed."""
    if devices > len(labels) and not partition.shares_examples:
        raise BadInput(
            f"devices: got {devices}; the dataset has {len(labels)} examples, and each device needs one "
            "(or set examples_per_device, and devices share them)"
        )
    return partition.split(labels, classes, devices, generator(seed, Stream.PARTITION))


def cut(order: Array, shares: Array) -> list[Part]:
    """Cut `order` into consecutive parts of the given shares."""
    ends = np.round(np.cumsum(shares) * len(order)).astype(int)
    return fill_empty(np.split(order, ends[:-1]))


def fill_empty(parts: Sequence[Array]) -> list[Part]:
    """Give devices without data one example of the device that has most: without data they cannot train."""
    filled = list(parts)
    for index, part in enumerate(filled):
        if len(part) == 0:
            largest = max(range(len(filled)), key=lambda i: len(filled[i]))
            filled[index], filled[largest] = filled[largest][:1], filled[largest][1:]
    return [np.sort(part) for part in filled]


def count_classes(parts: Sequence[Part], labels: Array, classes: int) -> Array:
    """Return a table, devices x classes: how many examples each device holds of each class."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
