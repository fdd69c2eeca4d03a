"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. Algorithm 2.

| paper | here |
|---|---|
| mu | mu |
| (mu / 2) |w - w^t|^2 in h_k | its gradient, mu (w_local - w_sent): Local.pull |
| gamma-inexact solution | however many steps the device managed |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.method import Direction, Method, WeightedSum
from fedlga.core.settings import setting
from fedlga.core.types import Assignment, Contribution, Local, ServerState

if TYPE_CHECKING:
    from fedlga.core.types import Memory


@final
@dataclass(frozen=True)
class FedProx(Method):
    """Local work is held near the weights sent; the rest is FedAvg."""

    mu: float = setting(1.0, "weight of the proximal term (the FedLGA paper uses 1)", least=0)

    def local(self, assignment: Assignment, memory: Memory) -> Local:  # noqa: D102
        return Local(pull=self.mu)

    def direction(  # noqa: D102
        self, state: ServerState, sums: Mapping[str, WeightedSum], contributions: Sequence[Contribution]
    ) -> Direction:
        return Direction([sums["delta"].mean()])
