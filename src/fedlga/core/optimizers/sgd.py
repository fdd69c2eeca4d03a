"""Plain steps: FedAvg's server, with the two-sided learning rates of Yang et al., ICLR 2021."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.optimizers.base import ServerOptimizer

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector


@final
@dataclass(frozen=True)
class Sgd(ServerOptimizer):
    """w + eta_g * direction."""

    def step(self, w: Vector, terms: Sequence[Vector], memory: Memory) -> tuple[Vector, Memory]:  # noqa: D102
        for term in terms:
            w = term.mul_(self.eta_g).add_(w)
        return w, {}
