"""The weighted mean: what every method's paper uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from fedlga.core.aggregation.base import AggregationRule
from fedlga.core.kernels.updates import weighted_sum
from fedlga.core.method import WeightedVector

if TYPE_CHECKING:
    from fedlga.core.types import Vector

BLOCK = 1 << 21  # parameters: smaller blocks cost more in calls than they save


@final
@dataclass(frozen=True)
class Mean(AggregationRule):
    """The weighted mean. Without a length bound it holds one update at a time."""

    streams = True

    def sum(self, vectors: Sequence[WeightedVector], start: Vector | None = None) -> Vector:
        """Read each vector once. The result has the same bits as adding the vectors one after the other."""
        if start is not None:
            total = start.clone()
            for v in vectors:
                total.add_(v.vector, alpha=v.coefficient)
            return total
        total = weighted_sum([v.vector for v in vectors], [v.coefficient for v in vectors])
        return _sum_in_blocks(vectors) if total is None else total


def mean_of(vectors: Sequence[WeightedVector]) -> Vector:
    """Return the weighted mean of some vectors."""
    return Mean().sum(vectors).div_(sum(v.weight for v in vectors))


def _sum_in_blocks(vectors: Sequence[WeightedVector]) -> Vector:
    """Sum block by block, so that the block stays in the cache."""
    first, *rest = vectors
    total = torch.empty_like(first.vector)
    for start in range(0, len(total), BLOCK):
        part = slice(start, start + BLOCK)
        block = torch.mul(first.vector[part], first.coefficient, out=total[part])
        for v in rest:
            block.add_(v.vector[part], alpha=v.coefficient)
    return total
