"""FedAvgM: Hsu et al., Measuring the Effects of Non-Identical Data Distribution, 2019, section 4.3.

| paper | here |
|---|---|
| v <- beta v + Delta w | memory["optimizer.velocity"] |
| w <- w - v (their Delta w is w_sent - w_local) | w + eta_g * velocity |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.method import recall
from fedlga.core.optimizers.base import ServerOptimizer, add_terms
from fedlga.core.settings import setting

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

VELOCITY = "optimizer.velocity"


@final
@dataclass(frozen=True)
class Momentum(ServerOptimizer):
    """Directions of earlier rounds go on moving the weights."""

    beta: float = setting(0.9, "what is left of the velocity after a round", least=0, below=1)

    @property
    def carry(self) -> float:  # noqa: D102
        return self.beta

    def step(self, w: Vector, terms: Sequence[Vector], memory: Memory) -> tuple[Vector, Memory]:  # noqa: D102
        velocity = (recall(memory, VELOCITY, w) * self.beta).add_(add_terms(terms))
        return w.add(velocity, alpha=self.eta_g), {VELOCITY: velocity}
