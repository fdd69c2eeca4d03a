"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Algorithm 1. The server optimiser `sgd` makes the step; its eta_g = 1 is the original.

| paper | here |
|---|---|
| w_t, w^k_{t+1} - w_t | state.w, update.delta |
| n_k / n | contribution.weight, over the sum of weights of those that reported |
| eta | assignment.lr |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from fedlga.core.method import Direction, Method, WeightedSum
from fedlga.core.types import Contribution, ServerState


@final
@dataclass(frozen=True)
class FedAvg(Method):
    """Plain SGD on the device, the mean of the updates at the aggregator."""

    def direction(  # noqa: D102
        self, state: ServerState, sums: Mapping[str, WeightedSum], contributions: Sequence[Contribution]
    ) -> Direction:
        return Direction([sums["delta"].mean()])
