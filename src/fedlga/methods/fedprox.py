"""FedProx: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. Algorithm 2.

| paper | here |
|---|---|
| mu | mu |
| (mu / 2) |w - w^t|^2 in h_k | its gradient, mu (w_local - w_sent): Local.pull |
| gamma-inexact solution | however many steps the device managed |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from ..settings import setting
from ..types import Local, Server, Task, Update
from .base import Method, mean_delta

if TYPE_CHECKING:
    from ..types import Memory


@final
@dataclass(frozen=True)
class FedProx(Method):
    """Local work is held near the weights sent; the rest is FedAvg."""

    mu: float = setting(1.0, "weight of the proximal term (the FedLGA paper uses 1)", least=0)
    eta_g: float = setting(1.0, "global learning rate: multiplies the averaged update", above=0)

    def local(self, task: Task, memory: Memory) -> Local:  # noqa: D102
        return Local(pull=self.mu)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:  # noqa: D102
        return replace(server, w=mean_delta(updates).mul_(self.eta_g).add_(server.w))
