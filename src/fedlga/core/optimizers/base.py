"""What a server optimiser is: it turns the direction that a method gives into the next weights.

Reddi et al., Adaptive Federated Optimization, ICLR 2021: the averaged update takes the place of a negative gradient.
With `sgd` and eta_g = 1 every method is what its paper says.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from fedlga.core.settings import setting

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector


@dataclass(frozen=True)
class ServerOptimizer(ABC):
    """A frozen dataclass of settings; what it remembers is in the server's memory, under names with `optimizer.`."""

    eta_g: float = setting(1.0, "global learning rate: multiplies the step", above=0)

    @property
    def carry(self) -> float:
        """The share of a round's step that the next round repeats: 0 without momentum."""
        return 0.0

    @abstractmethod
    def step(self, w: Vector, terms: Sequence[Vector], memory: Memory) -> tuple[Vector, Memory]:
        """Return the next weights and what to remember; the direction is the sum of `terms`.

        The terms may be overwritten; `w` and `memory` must not be.
        """


def add_terms(terms: Sequence[Vector]) -> Vector:
    """Return the direction as one vector, in the memory of the first term."""
    return reduce(lambda total, term: total.add_(term), terms)
