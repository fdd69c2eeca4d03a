"""FedAvg: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.

Algorithm 1, with the two-sided learning rates of Yang et al., ICLR 2021: eta_g = 1 is the original.

| paper | here |
|---|---|
| w_t, w^k_{t+1} - w_t | server.w, update.delta |
| n_k / n | update.weight, over the sum of weights of those that reported |
| eta | task.lr |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from ..settings import setting
from ..types import Server, Update
from .base import Method, mean_delta


@final
@dataclass(frozen=True)
class FedAvg(Method):
    """Plain SGD on the device, the mean of the updates at the aggregator."""

    eta_g: float = setting(1.0, "global learning rate: multiplies the averaged update", above=0)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:  # noqa: D102
        return replace(server, w=mean_delta(updates).mul_(self.eta_g).add_(server.w))
