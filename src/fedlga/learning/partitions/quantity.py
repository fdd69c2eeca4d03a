"""Unequal amounts: each device holds a random sample, of unequal size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from fedlga.core.settings import setting
from fedlga.learning.partitions.base import Partition, cut

if TYPE_CHECKING:
    from fedlga.core.types import Array
    from fedlga.learning.partitions.base import Part


@final
@dataclass(frozen=True)
class ByQuantity(Partition):
    """Shuffled and cut into shares drawn from Dirichlet(alpha)."""

    partition_alpha: float = setting(0.5, "smaller: fewer devices hold most of the data", above=0)

    def split(self, labels: Array, classes: int, devices: int, rng: np.random.Generator) -> list[Part]:  # noqa: D102
        order = rng.permutation(len(labels))
        return cut(order, rng.dirichlet(np.full(devices, self.partition_alpha)))
