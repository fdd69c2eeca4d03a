"""The aggregator's two passes over updates, compiled."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

from .built import library

if TYPE_CHECKING:
    from ..types import Vector

ROW = 4096  # BLOCK of updates.c
CORES = min(4, os.cpu_count() or 1)  # more do not read faster
WORTH_A_THREAD = 1 << 21  # numbers to be read


@cache
def _functions() -> tuple[Any, Any] | None:
    built = library("updates")
    if built is None:
        return None
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    built.look.argtypes, built.look.restype = [pointer, pointer, count, pointer], ctypes.c_double
    built.mean.argtypes, built.mean.restype = [pointer, pointer, count, count, ctypes.c_float, pointer], None
    return built.look, built.mean


def looked(table: torch.Tensor, signs: Vector, sums: Vector) -> float | None:
    """Add the rows of a table, each with its sign, to `sums`; the sum of all squares. None: no compiled way."""
    functions = _functions()
    if functions is None or table.shape[1] != ROW or not table.is_contiguous() or table.dtype != torch.float32:
        return None
    assert sums.is_contiguous()
    assert signs.is_contiguous()
    return functions[0](table.data_ptr(), signs.data_ptr(), len(table), sums.data_ptr())


def mean(vectors: Sequence[Vector], counts: Sequence[float], mass: float) -> Vector | None:
    """The vectors, each times its count, summed and divided by the mass. None: there is no compiled way."""
    functions = _functions()
    size = len(vectors[0])
    plain = all(v.is_contiguous() and v.dtype == torch.float32 and len(v) == size for v in vectors)
    if functions is None or not plain:
        return None
    out = torch.empty_like(vectors[0])
    numbers = (ctypes.c_float * len(vectors))(*counts)

    def part(start: int, end: int) -> None:
        pointers = (ctypes.c_void_p * len(vectors))(*(v.data_ptr() + 4 * start for v in vectors))
        functions[1](pointers, numbers, len(vectors), end - start, mass, out.data_ptr() + 4 * start)

    # By now nobody is at work but us, and two cores read faster than one. Each number is made as it would be by one.
    mine, *others = _parts(size, size * len(vectors))
    helpers = [Thread(target=part, args=bounds) for bounds in others]
    for helper in helpers:
        helper.start()
    part(*mine)
    for helper in helpers:
        helper.join()
    return out


def _parts(size: int, work: int) -> list[tuple[int, int]]:
    """Pieces of a vector, one for each thread that is worth its start."""
    threads = max(1, min(CORES, work // WORTH_A_THREAD))
    edges = [size * k // threads // ROW * ROW for k in range(threads)] + [size]
    return list(pairwise(edges))
