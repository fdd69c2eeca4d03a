"""The task's own partition: a function in its file, or a partitioner of Flower Datasets."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fedlga.core.settings import BadInput
from fedlga.learning.partitions.base import Partition

if TYPE_CHECKING:
    from fedlga.core.types import Array
    from fedlga.learning.partitions.base import Part

TAKES = "it takes a name, a function of (targets, devices, rng) that returns each device's rows, or a partitioner"
ROW, LABEL = "row", "label"  # the columns of the table that a partitioner of Flower Datasets gets


@final
@dataclass(frozen=True)
class OwnPartition(Partition):
    """Only for tasks: one dataset a device, or what `partition` in the task's file says."""

    given: Any = None  # the task's `partition`

    def split(self, labels: Array, classes: int, devices: int, rng: np.random.Generator) -> list[Part]:  # noqa: D102
        if self.given is None:
            raise BadInput("partition: got 'own', and the task has no partition; it takes another, such as iid")
        if isinstance(self.given, Partition):
            return self.given.split(labels, classes, devices, rng)
        if hasattr(self.given, "load_partition"):
            parts: Any = self._ask_partitioner(labels, devices)
        elif callable(self.given):
            parts = self.given(labels, devices, rng)
        else:
            raise BadInput(f"partition: the task's is a {type(self.given).__name__}; {TAKES}")
        return check_parts(parts, len(labels), devices)

    def _ask_partitioner(self, labels: Array, devices: int) -> list[Array]:
        """Let a partitioner of Flower Datasets divide a table with a row an example: it needs no more than labels."""
        from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]

        partitioner = copy.deepcopy(self.given)  # it takes a dataset only once
        labels = labels if labels.ndim == 1 else np.zeros(len(labels), int)
        partitioner.dataset = Dataset.from_dict({ROW: np.arange(len(labels)), LABEL: labels})
        try:
            if partitioner.num_partitions != devices:
                raise BadInput(
                    f"partition: the task's partitioner makes {partitioner.num_partitions} parts for {devices} devices"
                )
            return [np.asarray(partitioner.load_partition(device)[ROW]) for device in range(devices)]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            hint = f"; the column of the labels is called {LABEL!r} here"
            raise BadInput(f"partition: the task's partitioner failed ({error}){hint}") from error


def check_parts(parts: Any, examples: int, devices: int) -> list[Part]:
    """Return each device's rows, sorted; BadInput unless every device has some, and no example has two devices."""
    if isinstance(parts, str) or not hasattr(parts, "__iter__"):
        raise BadInput(f"partition: the task's gave a {type(parts).__name__}; {TAKES}")
    rows = [np.sort(np.asarray(part).reshape(-1)) for part in parts]
    if len(rows) != devices:
        raise BadInput(f"partition: the task's gave {len(rows)} parts for {devices} devices")
    for device, part in enumerate(rows):
        if len(part) == 0:
            raise BadInput(f"partition: the task's gave device {device} no examples; every device needs one at least")
        if part.dtype.kind not in "iu" or part[0] < 0 or part[-1] >= examples:
            raise BadInput(
                f"partition: the task's gave device {device} rows that are not numbers from 0 to {examples - 1}"
            )
    together = np.concatenate(rows)
    if len(np.unique(together)) < len(together):
        raise BadInput("partition: the task's gave an example to two devices")
    return rows
