"""Examples: inputs and targets, row by row; in memory, or read when a batch needs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
import torch

from fedlga.core.settings import BadInput
from fedlga.learning.accelerator import CPU
from fedlga.learning.task import describe_error
from fedlga.learning.trees import Tree, describe_tree, join_trees, leaves_of, map_tree

if TYPE_CHECKING:
    from fedlga.core.types import Array

    Batch = tuple[Tree, Tree]  # inputs and targets

Collate = Callable[[list[Any]], Any]


class Examples(ABC):
    """A number of examples. A batch is a tree of inputs and a tree of targets."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def batch(self, rows: torch.Tensor) -> Batch:
        """Return the inputs and targets of these rows."""

    @abstractmethod
    def piece(self, start: int, end: int) -> Batch:
        """Return the inputs and targets of rows [start, end)."""

    @abstractmethod
    def take(self, rows: Array) -> Examples:
        """Return these rows as examples of their own."""

    @abstractmethod
    def targets(self) -> Tree:
        """Return the targets of all examples. Lazy examples are read one by one for it."""

    def to(self, device: torch.device) -> Examples:
        """Return the examples on a device, if they are in memory; lazy ones are moved batch by batch."""
        return self

    @property
    def device(self) -> torch.device:
        """Where the rows of a batch have to be."""
        return CPU

    @property
    def in_memory(self) -> TensorExamples | None:
        """The examples as tensors, if they are."""
        return None

    @property
    @abstractmethod
    def knows_targets(self) -> bool:
        """Whether `targets` is quick."""


@final
class TensorExamples(Examples):
    """Examples in memory: every leaf of both trees is a tensor with one row an example."""

    def __init__(self, inputs: Tree, targets: Tree) -> None:
        self.inputs, self._targets = inputs, targets
        self._length = len(next(leaves_of(targets)))

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: torch.Tensor) -> Batch:  # noqa: D102
        return self._each(lambda leaf: leaf.index_select(0, rows))

    def piece(self, start: int, end: int) -> Batch:  # noqa: D102
        return self._each(lambda leaf: leaf[start:end])

    def take(self, rows: Array) -> TensorExamples:  # noqa: D102
        return TensorExamples(*self.batch(torch.from_numpy(np.asarray(rows, np.int64))))

    def targets(self) -> Tree:  # noqa: D102
        return self._targets

    def to(self, device: torch.device) -> TensorExamples:  # noqa: D102
        return TensorExamples(*self._each(lambda leaf: leaf.to(device)))

    @property
    def device(self) -> torch.device:  # noqa: D102
        return next(leaves_of(self._targets)).device

    @property
    def in_memory(self) -> TensorExamples:  # noqa: D102
        return self

    @property
    def knows_targets(self) -> bool:  # noqa: D102
        return True

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        if isinstance(self.inputs, torch.Tensor) and isinstance(self._targets, torch.Tensor):  # no tree to walk
            return change(self.inputs), change(self._targets)
        return map_tree(change, self.inputs), map_tree(change, self._targets)


@final
class LazyExamples(Examples):
    """Examples that are read when a batch needs them: data that is larger than memory."""

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        rows: Array | None = None,
        known_targets: Callable[[], Tree] | None = None,
    ) -> None:
        """`dataset[i]` is one example, and `collate` makes a batch of a list of them.

        `known_targets` returns all targets of the dataset without reading its inputs, if something can.
        """
        self.collate = collate
        self._dataset = dataset
        self._rows: Array = np.arange(len(dataset)) if rows is None else np.asarray(rows)
        self._known_targets = known_targets

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: torch.Tensor) -> Batch:  # noqa: D102
        return self._read(self._rows[rows.numpy()])

    def piece(self, start: int, end: int) -> Batch:  # noqa: D102
        return self._read(self._rows[start:end])

    def take(self, rows: Array) -> LazyExamples:  # noqa: D102
        return LazyExamples(self._dataset, self.collate, self._rows[rows], self._known_targets)

    def targets(self) -> Tree:  # noqa: D102
        if self._known_targets is not None:
            rows = torch.from_numpy(np.asarray(self._rows, np.int64))
            return map_tree(lambda leaf: leaf.index_select(0, rows), self._known_targets())
        pieces = [self.piece(start, min(start + 1, len(self)))[1] for start in range(len(self))]
        return join_trees(pieces)

    @property
    def knows_targets(self) -> bool:  # noqa: D102
        return self._known_targets is not None

    def item(self, row: int) -> Any:
        """Return one example as the dataset has it."""
        return self._dataset[int(self._rows[row])]

    def _read(self, rows: Sequence[int] | Array) -> Batch:
        read_many = getattr(self._dataset, "__getitems__", None)  # torch's and Hugging Face's faster way
        numbers = [int(row) for row in rows]
        with CPU if torch.get_default_device() != CPU else nullcontext():  # torch's own collation asks the default
            return self._read_and_collate(numbers, read_many)

    def _read_and_collate(self, numbers: list[int], read_many: Any) -> Batch:
        try:
            items = read_many(numbers) if read_many else [self._dataset[row] for row in numbers]
        except BadInput:
            raise
        except Exception as error:  # a dataset of the user's own may raise anything
            raise BadInput(f"data(): {_list_some(numbers)} cannot be read ({describe_error(error)})") from error
        return self._make_batch(items, numbers)

    def _make_batch(self, items: list[Any], numbers: Sequence[int]) -> Batch:
        own = getattr(self.collate, "__module__", "").startswith("fedlga.")
        name = "data(): its examples cannot be put into a batch" if own else "collate()"
        try:
            batch = self.collate(items)
        except Exception as error:
            raise BadInput(f"{name}{'' if own else ' failed'} ({describe_error(error)})") from error
        pair: Any = batch
        if not isinstance(pair, list | tuple) or len(cast("Sequence[Any]", pair)) != 2:  # noqa: PLR2004
            raise BadInput(f"{name} gave {describe_tree(pair)}; it takes a pair, (inputs, targets)")
        inputs, targets = cast("Sequence[Any]", pair)
        if not all(isinstance(leaf, torch.Tensor) for tree in (inputs, targets) for leaf in leaves_of(tree)):
            form = f"({describe_tree(inputs)}, {describe_tree(targets)})"
            raise BadInput(f"{name} gave {form}; it takes tensors, or tuples and dicts of them")
        for side, tree in (("inputs", inputs), ("targets", targets)):
            if bad := count_not_finite(tree):
                whose = "data()" if own else name
                raise BadInput(
                    f"{whose}: the {side} of {_list_some(_find_not_finite(tree, numbers))} hold {bad} values that are "
                    "not finite (NaN or infinity); it takes finite numbers"
                )
        return inputs, targets


def count_not_finite(tree: Tree) -> int:
    """Return how many numbers of a tree are NaN or infinite."""
    floats = [leaf for leaf in leaves_of(tree) if leaf.is_floating_point()]
    if all(bool(torch.isfinite(leaf).all()) for leaf in floats):
        return 0
    return sum(int((~torch.isfinite(leaf)).sum()) for leaf in floats)


def _find_not_finite(tree: Tree, numbers: Sequence[int]) -> Sequence[int]:
    """Return the rows that hold what is not finite; all of them if that cannot be said."""
    floats = [leaf for leaf in leaves_of(tree) if leaf.is_floating_point()]
    if not all(leaf.dim() and len(leaf) == len(numbers) for leaf in floats):
        return numbers
    bad = torch.stack([~torch.isfinite(leaf).reshape(len(leaf), -1).all(1) for leaf in floats]).any(0)
    return [numbers[int(place)] for place in bad.nonzero()]


def _list_some(numbers: Sequence[int]) -> str:
    some = ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")  # noqa: PLR2004
    return f"row{'s' if len(numbers) > 1 else ''} {some}"


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """Return a batch on a device."""
    if device.type == "cpu":  # where batches come from
        return batch
    return map_tree(lambda leaf: leaf.to(device), batch[0]), map_tree(lambda leaf: leaf.to(device), batch[1])


def collate_pairs(items: list[Any]) -> tuple[Tree, Tree]:
    """Return a batch of (input, target) pairs: torch's own collation, with float64 as float32."""
    inputs, targets = torch.utils.data.default_collate(items)
    return map_tree(_narrow, inputs), map_tree(lambda leaf: as_target(_narrow(leaf)), targets)


def _narrow(leaf: Any) -> Any:
    return leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype == torch.float64 else leaf


def as_target(leaf: Any) -> Any:
    """Return whole numbers as int64, which torch takes as classes, yes-or-no tables as float32."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    if leaf.dtype == torch.bool:
        return leaf.float() if leaf.dim() > 1 else leaf.long()
    if leaf.dtype == torch.float64:
        return leaf.float()
    return leaf if leaf.is_floating_point() else leaf.long()


@dataclass(frozen=True)
class Constant:
    """A function without arguments that returns a value; it can be sent to another process."""

    value: Any

    def __call__(self) -> Any:  # noqa: D102
        return self.value
