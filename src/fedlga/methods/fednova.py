"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous FL, NeurIPS 2020. Eq. 8 to 11.

| paper | here |
|---|---|
| tau_i (not the FedLGA paper's tau) | update.steps |
| |a_i|_1 | effective_steps: steps, with momentum and the proximal term accounted for |
| p_i | update.weight over the sum of weights of those that reported |
| tau_eff = sum p_i |a_i|_1 | `effective` |
| d_i | -update.delta / (lr |a_i|_1) |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import torch

from ..settings import setting
from ..types import Local, Server, Task, Update
from .base import Method, effective_steps

if TYPE_CHECKING:
    from ..types import Memory


@final
@dataclass(frozen=True)
class FedNova(Method):
    """Each update counts per step it took, so whoever did more steps does not pull the optimum to itself."""

    mu: float = setting(0.0, "weight of a proximal term on the device; 0 for none", least=0)

    def local(self, task: Task, memory: Memory) -> Local:  # noqa: D102
        return Local(pull=self.mu)

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:  # noqa: D102
        step, work, mass = torch.zeros_like(server.w), 0.0, 0.0
        for u in updates:
            a = effective_steps(u.steps, lr=u.lr, momentum=u.momentum, pull=self.mu)
            step.add_(u.delta, alpha=u.weight * u.scale / a)
            work += u.weight * a
            mass += u.weight
        # tau_eff * sum(p_i delta_i / a_i), with p_i = weight / mass
        return replace(server, w=server.w + step * (work / mass**2))
