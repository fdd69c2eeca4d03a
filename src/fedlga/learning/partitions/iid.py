"""Each device holds a random sample of equal size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from fedlga.core.settings import setting
from fedlga.learning.partitions.base import Partition

if TYPE_CHECKING:
    from fedlga.core.types import Array
    from fedlga.learning.partitions.base import Part


@final
@dataclass(frozen=True)
class Iid(Partition):
    """Shuffled and cut into equal parts."""

    examples_per_device: int = setting(
        0, "drawn with replacement for each device, so devices may share; 0: every example goes to one device", least=0
    )

    @property
    def shares_examples(self) -> bool:  # noqa: D102
        return self.examples_per_device > 0

    def split(self, labels: Array, classes: int, devices: int, rng: np.random.Generator) -> list[Part]:  # noqa: D102
        if self.examples_per_device:
            return list(np.sort(rng.integers(0, len(labels), (devices, self.examples_per_device)), axis=1))
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), devices)]
