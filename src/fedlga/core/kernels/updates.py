"""The aggregator's two passes over updates, compiled from updates.c."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

from fedlga.core.kernels.compiler import load_library

if TYPE_CHECKING:
    from fedlga.core.types import Vector

ROW = 4096  # BLOCK of updates.c
CORES = min(4, os.cpu_count() or 1)  # more threads do not read faster
WORTH_A_THREAD = 1 << 21  # numbers: with fewer to read, starting a thread takes longer than it saves


@cache
def _functions() -> tuple[Any, Any] | None:
    """Return `sum_with_signs` and `weighted_sum` of updates.c; None if it cannot be compiled here."""
    library = load_library(Path(__file__).with_name("updates.c"))
    if library is None:
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    signs, weighted = library.sum_with_signs, library.weighted_sum
    signs.argtypes, signs.restype = [pointer, pointer, count, pointer], ctypes.c_double
    weighted.argtypes, weighted.restype = [pointer, pointer, count, count, pointer], None
    return signs, weighted


def sum_with_signs(table: torch.Tensor, signs: Vector, sums: Vector) -> float | None:
    """Add the rows of a table, each with its sign, to `sums`; return the sum of all squares. None: not compiled."""
    functions = _functions()
    if functions is None or table.shape[1] != ROW or not all(map(_is_plain, (table, signs, sums))):
        return None
    return functions[0](table.data_ptr(), signs.data_ptr(), len(table), sums.data_ptr())


def weighted_sum(vectors: Sequence[Vector], coefficients: Sequence[float]) -> Vector | None:
    """Return the sum of coefficient * vector. None: not compiled."""
    functions = _functions()
    size = len(vectors[0])
    plain = all(_is_plain(v) and len(v) == size for v in vectors)
    if functions is None or not plain:
        return None
    out = torch.empty_like(vectors[0])
    numbers = (ctypes.c_float * len(vectors))(*coefficients)

    def add(start: int, end: int) -> None:
        pointers = (ctypes.c_void_p * len(vectors))(*(v.data_ptr() + 4 * start for v in vectors))
        functions[1](pointers, numbers, len(vectors), end - start, out.data_ptr() + 4 * start)

    # All devices have finished, so cores are free, and two read faster than one. The pieces do not change any number.
    first, *others = _pieces(size, size * len(vectors))
    helpers = [Thread(target=add, args=bounds) for bounds in others]
    for helper in helpers:
        helper.start()
    add(*first)
    for helper in helpers:
        helper.join()
    return out


def _is_plain(v: torch.Tensor) -> bool:
    """Return whether compiled code can read a tensor: float32 in main memory, one number after the other."""
    return v.device.type == "cpu" and v.dtype == torch.float32 and v.is_contiguous()


def _pieces(size: int, reads: int) -> list[tuple[int, int]]:
    """Divide a vector between as many threads as are worth their start."""
    threads = max(1, min(CORES, reads // WORTH_A_THREAD))
    edges = [size * k // threads // ROW * ROW for k in range(threads)] + [size]
    return list(pairwise(edges))
