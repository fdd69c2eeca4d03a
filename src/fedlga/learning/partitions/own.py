"""The task's own partition: a function in its file, or a partitioner of Flower Datasets."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from fedlga.core.settings import BadInput
from fedlga.learning.partitions.base import Partition
from fedlga.learning.task import describe_error

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
            try:
                parts = self.given(labels, devices, rng)
            except BadInput:
                raise
            except Exception as error:
                raise BadInput(f"partition: the task's failed ({describe_error(error)})") from error
        else:
            raise BadInput(f"partition: the task's is a {type(self.given).__name__}; {TAKES}")
        return check_parts(parts, len(labels), devices)

    def _ask_partitioner(self, labels: Array, devices: int) -> list[Array]:
        """Let a partitioner of Flower Datasets divide a table with a row an example: it needs no more than labels."""
        partitioner = _give_table(self.given, labels)
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


def _as_rows(device: int, part: Any) -> Array:
    try:
        return np.sort(np.asarray(part).reshape(-1))
    except (ValueError, TypeError) as error:
        raise BadInput(f"partition: the task's gave device {device} rows that are not numbers ({error})") from error


def count_partitions(partitioner: Any, labels: Array) -> int:
    """Return how many parts a partitioner of Flower Datasets makes: some know it only once they have a table."""
    try:
        return int(_give_table(partitioner, labels).num_partitions)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BadInput(
            f"partition: the task's partitioner failed ({error}); the column of the labels is called {LABEL!r} here"
        ) from error


def _give_table(given: Any, labels: Array) -> Any:
    from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]

    partitioner = copy.deepcopy(given)  # it takes a dataset only once
    labels = labels if labels.ndim == 1 else np.zeros(len(labels), int)
    partitioner.dataset = Dataset.from_dict({ROW: np.arange(len(labels)), LABEL: labels})
    return partitioner


def check_parts(parts: Any, examples: int, devices: int) -> list[Part]:
    """Return each device's rows, sorted; BadInput unless every device has some, and no example has two devices."""
    if isinstance(parts, str) or not hasattr(parts, "__iter__"):
        raise BadInput(f"partition: the task's gave a {type(parts).__name__}; {TAKES}")
    given: list[Any] = list(cast("Mapping[Any, Any]", parts).values() if isinstance(parts, Mapping) else parts)
    rows = [_as_rows(device, part) for device, part in enumerate(given)]
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
