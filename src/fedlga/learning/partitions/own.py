"""The task's own partition: a function in its file, or a partitioner of Flower Datasets."""

from __future__ import annotations

import copy
import sys
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
    table: Any = None  # the frame or the Hugging Face dataset with all columns, if the data is one
    rows: Any = None  # of the table, that are divided; None: all

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
        partitioner = self.give_table(labels)
        try:
            if partitioner.num_partitions != devices:
                raise BadInput(
                    f"partition: the task's partitioner makes {partitioner.num_partitions} parts for {devices} devices"
                )
            return [np.asarray(partitioner.load_partition(device)[ROW]) for device in range(devices)]
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            if isinstance(error, BadInput):
                raise
            raise BadInput(self._describe_failure(error)) from error

    def count_parts(self, labels: Array) -> int:
        """Return how many parts a partitioner of Flower Datasets makes: some know it only once they have a table."""
        try:
            return int(self.give_table(labels).num_partitions)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadInput(self._describe_failure(error)) from error

    def give_table(self, labels: Array) -> Any:
        """Return the partitioner with a table of its own: the data's columns, if it has some, and the targets."""
        from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs, reportMissingImports]

        partitioner = copy.deepcopy(self.given)  # it takes a dataset only once
        targets = labels if labels.ndim == 1 else np.zeros(len(labels), int)
        if self.table is None:
            table: Any = Dataset.from_dict({LABEL: targets})
        elif isinstance(self.table, Dataset):
            table = self.table
        else:
            table = Dataset.from_pandas(self.table, preserve_index=False)
        if self.rows is not None and self.table is not None:
            table = table.select(self.rows)
        table = table.remove_columns([name for name in table.column_names if name == ROW])
        if LABEL not in table.column_names:
            table = table.add_column(LABEL, targets)
        partitioner.dataset = table.add_column(ROW, np.arange(len(targets)))
        return partitioner

    def _describe_failure(self, error: Exception) -> str:
        named = "of the data" if self.table is not None else f"{LABEL!r} and {ROW!r}"
        return f"partition: the task's partitioner failed ({error}); its table has the columns {named}"


def _as_rows(device: int, part: Any) -> Array:
    try:
        return np.sort(np.asarray(part).reshape(-1))
    except (ValueError, TypeError) as error:
        raise BadInput(f"partition: the task's gave device {device} rows that are not numbers ({error})") from error


def id_column(given: Any) -> str | None:
    """Return the column that says whose an example is, if this is a partitioner that goes by one."""
    library: Any = sys.modules.get("flwr_datasets.partitioner")
    if library is None or not isinstance(given, library.NaturalIdPartitioner | library.GroupedNaturalIdPartitioner):
        return None
    return cast("str", vars(given)["_partition_by"])


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
