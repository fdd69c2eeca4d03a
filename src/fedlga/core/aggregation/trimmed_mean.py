"""The coordinate-wise trimmed mean: Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, Definition 2.

| paper | here |
|---|---|
| beta | trim: the share of updates cut off at each end |
| trmean_beta{x^i_k} | the weighted mean of what is left of coordinate k |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from fedlga.core.aggregation.base import AggregationRule
from fedlga.core.aggregation.blocks import fill_in_blocks
from fedlga.core.method import WeightedVector
from fedlga.core.settings import BadInput, setting

if TYPE_CHECKING:
    from fedlga.core.types import Vector


@final
@dataclass(frozen=True)
class TrimmedMean(AggregationRule):
    """Of each parameter the largest and the smallest values are cut off, and the rest is averaged by weight."""

    trim: float = setting(0.2, "share of the updates that is cut off at each end", above=0, below=0.5)

    least_updates = 3

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        known = super().resolve(settings, experiment)
        if count_trimmed(experiment["cohort"], known["trim"]) == 0:
            raise BadInput(
                f"trimmed-mean.trim: got {known['trim']:g} with cohort {experiment['cohort']}; it cuts off nothing: "
                f"it takes at least {1 / experiment['cohort']:.3g}"
            )
        return known

    def sum(self, vectors: Sequence[WeightedVector], start: Vector | None = None) -> Vector:  # noqa: D102
        cut = count_trimmed(len(vectors), self.trim)
        middle = slice(cut, len(vectors) - cut)
        weights = torch.tensor([v.weight for v in vectors], device=vectors[0].vector.device)

        def estimate(values: torch.Tensor) -> torch.Tensor:
            ordered, order = values.sort(dim=0)
            counts = weights[order][middle]
            return (ordered[middle] * counts).sum(0) / counts.sum(0)

        return fill_in_blocks(vectors, estimate, start)


def count_trimmed(updates: int, trim: float) -> int:
    """Return how many updates are cut off at each end."""
    return math.floor(updates * trim + 1e-9)
