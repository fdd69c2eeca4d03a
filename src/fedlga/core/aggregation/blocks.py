"""What robust rules share: they need all updates of one parameter, so they work on blocks of parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from fedlga.core.method import WeightedVector

if TYPE_CHECKING:
    from fedlga.core.types import Vector

BLOCK = 1 << 16  # parameters: a block of ten updates fits the cache


def fill_in_blocks(
    vectors: Sequence[WeightedVector], estimate: Callable[[torch.Tensor], torch.Tensor], start: Vector | None
) -> Vector:
    """Return `start` plus the total weight times `estimate` of the updates x parameters, block by block."""
    weight = sum(v.weight for v in vectors)
    total = torch.empty_like(vectors[0].vector)
    for begin in range(0, len(total), BLOCK):
        part = slice(begin, begin + BLOCK)
        values = torch.stack([v.vector[part] * (v.coefficient / v.weight) for v in vectors])
        total[part] = estimate(values) * weight
    return total if start is None else total.add_(start)
