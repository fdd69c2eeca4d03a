"""Unequal classes: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from fedlga.core.settings import setting
from fedlga.learning.partitions.base import Partition, fill_empty

if TYPE_CHECKING:
    from fedlga.core.types import Array
    from fedlga.learning.partitions.base import Part


@final
@dataclass(frozen=True)
class ByDirichlet(Partition):
    """Each class is divided in shares drawn from Dirichlet(alpha)."""

    partition_alpha: float = setting(0.5, "smaller: fewer devices hold most of a class", above=0)

    needs_classes = True

    def split(self, labels: Array, classes: int, devices: int, rng: np.random.Generator) -> list[Part]:  # noqa: D102
        held: list[list[Array]] = [[] for _ in range(devices)]
        for label in range(classes):
            rows = rng.permutation(np.flatnonzero(labels == label))
            ends = np.round(np.cumsum(rng.dirichlet(np.full(devices, self.partition_alpha))) * len(rows)).astype(int)
            for device, some in enumerate(np.split(rows, ends[:-1])):
                held[device].append(some)
        return fill_empty([np.concatenate(rows) for rows in held])
