"""Digests of updates: the length of each, and a sketch that can be compared across rounds.

To compare updates across rounds the aggregator keeps of each a sketch of 4096 numbers: sums of its parameters with
random signs. Inner products of sketches are those of the updates, give or take 1/64 of their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlga.core.kernels.updates import sum_with_signs

if TYPE_CHECKING:
    from fedlga.core.types import Vector

SKETCH = 4096  # numbers kept of an update
BLOCK_ROWS = 1024  # rows of SKETCH parameters at a time: smaller blocks cost more in calls than they save
LARGE = 1 << 22  # parameters: updates of this size are read in parallel
READERS = 2  # threads for that


@dataclass(frozen=True)
class UpdateDigest:
    """All that completion reads of an update: its length (0 if it holds a non-finite number), and its sketch."""

    length: float
    sketch: Vector | None = None

    @property
    def direction(self) -> Vector | None:
        """The sketch at length 1; None for an update that points nowhere."""
        size = 0.0 if self.sketch is None or self.length == 0 else measure_length(self.sketch)
        return self.sketch / size if self.sketch is not None and size > 0 else None


class DigestReader:
    """Makes digests as updates arrive, while other devices still work. Use as a context manager.

    Large updates are read by two threads: memory bandwidth is the limit, and two cores read faster than one.
    """

    def __init__(self, *, sketches: bool) -> None:
        self._sketches = sketches
        self._threads = ThreadPoolExecutor(READERS)
        self._results: dict[int, Callable[[], UpdateDigest]] = {}

    def __enter__(self) -> DigestReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def add(self, device: int, delta: Vector) -> None:
        """Start to read a device's update."""
        if len(delta) < LARGE:
            digest = summarise(delta, sketch=self._sketches)
            self._results[device] = lambda: digest
        else:
            self._results[device] = self._threads.submit(summarise, delta, sketch=self._sketches).result

    def result(self) -> dict[int, UpdateDigest]:
        """Wait for all digests and return them by device."""
        return {device: result() for device, result in self._results.items()}


def summarise(delta: Vector, *, sketch: bool = True) -> UpdateDigest:
    """Return the length and the sketch of an update: parameter j goes to sum j mod 4096.

    Without a compiler it is read in blocks that are still in the cache for the second operation.
    """
    if len(delta) <= SKETCH:
        return UpdateDigest(measure_length(delta), delta.clone() if sketch else None)
    rows = len(delta) // SKETCH
    signs = _signs(rows)
    table, rest = delta[: rows * SKETCH].view(rows, SKETCH), delta[rows * SKETCH :]
    sums = delta.new_zeros(SKETCH)
    square = sum_with_signs(table, signs, sums)
    if square is None:
        square = 0.0
        for start in range(0, rows, BLOCK_ROWS):
            block = table[start : start + BLOCK_ROWS]
            square += float(torch.dot(block.view(-1), block.view(-1)))
            sums.addmv_(block.t(), signs[start : start + len(block)])
    square += float(torch.dot(rest, rest))
    sums[: len(rest)] += signs[rows] * rest
    length = math.sqrt(square) if math.isfinite(square) else 0.0
    return UpdateDigest(length, sums if sketch else None)


@lru_cache(maxsize=1)
def _signs(rows: int) -> Vector:
    """The signs are the same for all updates of a size: otherwise their sketches could not be compared."""
    return torch.from_numpy(np.random.default_rng(rows).choice(np.array([-1.0, 1.0], np.float32), rows + 1))


def measure_length(vector: Vector) -> float:
    """Return |vector|; 0 if it holds a non-finite number, so that it enters no law."""
    length = math.sqrt(float(torch.dot(vector, vector)))
    return length if math.isfinite(length) else 0.0


def summarise_all(deltas: Iterable[tuple[int, Vector]], *, sketches: bool) -> dict[int, UpdateDigest]:
    """Return a digest of each device's update."""
    with DigestReader(sketches=sketches) as reader:
        for device, delta in deltas:
            reader.add(device, delta)
        return reader.result()
