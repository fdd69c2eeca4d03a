"""Scaffold: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Algorithm 1, option II: the new control is the mean gradient along the local path, at no extra gradient.

| paper | here |
|---|---|
| c, c_i | state.memory["control"], the device's memory["control"]; both start at zero |
| K (local steps) | effective_steps of the steps really done (momentum included) |
| eta_l | assignment.lr: the rate this work was done at, not the schedule's next |
| c_i^+ - c_i | update.uploads["control"] |
| 1/N in c's update | contribution.share: 1/N, or the device's share of all examples |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.method import Direction, Method, WeightedSum, WeightedVector, effective_steps, recall, weigh_delta
from fedlga.core.types import Assignment, Contribution, Local, ServerState

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector


@final
@dataclass(frozen=True)
class Scaffold(Method):
    """Each device corrects its gradients by how its own mean gradient differs from that of all devices."""

    sends = ("control",)
    uploads = ("control",)
    accumulates = ("control",)
    needs_fresh = "it corrects by the newest control, and no analysis covers stale ones"
    needs_sgd = "its control is the mean gradient, delta / (steps * lr)"

    def local(self, assignment: Assignment, memory: Memory) -> Local:  # noqa: D102
        return Local(constant=_control(assignment.broadcast, assignment) - _control(memory, assignment))

    def finish(  # noqa: D102
        self, assignment: Assignment, delta: Vector, steps: int, memory: Memory
    ) -> tuple[Memory, Memory]:
        path = assignment.lr * effective_steps(steps, momentum=assignment.momentum)
        # c_i^+ = c_i - c - delta / (K eta_l)
        change = -_control(assignment.broadcast, assignment) - delta / path
        return {"control": change}, {"control": _control(memory, assignment) + change}

    def weigh(self, contribution: Contribution) -> Mapping[str, WeightedVector]:  # noqa: D102
        c = contribution
        return {"delta": weigh_delta(c), "control": WeightedVector(c.update.uploads["control"], c.share, c.share)}

    def direction(  # noqa: D102
        self, state: ServerState, sums: Mapping[str, WeightedSum], contributions: Sequence[Contribution]
    ) -> Direction:
        return Direction([sums["delta"].mean()])


def _control(memory: Memory, assignment: Assignment) -> Vector:
    return recall(memory, "control", assignment.w)
