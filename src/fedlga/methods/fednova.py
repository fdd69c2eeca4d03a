"""FedNova: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous FL, NeurIPS 2020. Eq. 8 to 11.

| paper | here |
|---|---|
| tau_i (not the FedLGA paper's tau) | contribution.steps: those done, or all if the update was completed |
| |a_i|_1 | effective_steps: steps, with momentum and the proximal term accounted for |
| p_i | contribution.weight over the sum of weights of those that reported |
| tau_eff = sum p_i |a_i|_1 | work / mass |
| d_i | -update.delta / (lr |a_i|_1) |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.method import Direction, Method, WeightedSum, WeightedVector, effective_steps
from fedlga.core.settings import setting
from fedlga.core.types import Assignment, Contribution, Local, ServerState

if TYPE_CHECKING:
    from fedlga.core.types import Memory


@final
@dataclass(frozen=True)
class FedNova(Method):
    """Each update counts per step it took, so a device that did more steps does not pull the optimum to itself."""

    mu: float = setting(0.0, "weight of a proximal term on the device; 0 for none", least=0)

    needs_sgd = "it divides an update by the gradients that SGD's steps add up to"

    def local(self, assignment: Assignment, memory: Memory) -> Local:  # noqa: D102
        return Local(pull=self.mu)

    def weigh(self, contribution: Contribution) -> Mapping[str, WeightedVector]:  # noqa: D102
        c = contribution
        return {"delta": WeightedVector(c.update.delta, c.weight, c.weight * c.scale / self._effective_steps(c))}

    def direction(  # noqa: D102
        self, state: ServerState, sums: Mapping[str, WeightedSum], contributions: Sequence[Contribution]
    ) -> Direction:
        mass = sums["delta"].weight
        work = sum(c.weight * self._effective_steps(c) for c in contributions)
        # tau_eff * sum(p_i delta_i / a_i), with p_i = weight / mass
        return Direction([sums["delta"].total * (work / mass**2)])

    def _effective_steps(self, c: Contribution) -> float:
        return effective_steps(c.steps, lr=c.update.lr, momentum=c.update.momentum, pull=self.mu)
