"""The coordinate-wise median: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, Definition 1 and Option I.

| paper | here |
|---|---|
| med{x^i_k} | the weighted median of coordinate k over the round's updates |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch

from fedlga.core.aggregation.base import AggregationRule
from fedlga.core.aggregation.blocks import fill_in_blocks
from fedlga.core.method import WeightedVector

if TYPE_CHECKING:
    from fedlga.core.types import Vector


@final
@dataclass(frozen=True)
class Median(AggregationRule):
    """The weighted median of each parameter: half of the updates may be arbitrary.

    With equal weights and an even number of updates it is the mean of the two in the middle, as usual. With unequal
    weights it is the value at which half of the weight is reached (the mean of two where it is reached exactly).
    """

    least_updates = 3

    def sum(self, vectors: Sequence[WeightedVector], start: Vector | None = None) -> Vector:  # noqa: D102
        weights = torch.tensor([v.weight for v in vectors], dtype=torch.float64, device=vectors[0].vector.device)
        half = float(weights.sum()) / 2

        def estimate(values: torch.Tensor) -> torch.Tensor:
            ordered, order = values.sort(dim=0)
            reached = weights[order].cumsum(0)
            # The first value at which at least half of the weight is reached, and the first beyond half.
            lower = (reached < half * (1 - 1e-12)).sum(0, keepdim=True)
            upper = (reached <= half * (1 + 1e-12)).sum(0, keepdim=True).clamp(max=len(vectors) - 1)
            return (ordered.gather(0, lower)[0] + ordered.gather(0, upper)[0]) / 2

        return fill_in_blocks(vectors, estimate, start)
