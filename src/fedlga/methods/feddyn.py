"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021. Algorithm 1.

| paper | here |
|---|---|
| alpha | alpha |
| grad L_k(theta_k^{t-1}) | h_i, the device's memory["gradient"]; starts at zero |
| h^t | state.memory["drift"]; starts at zero |
| 1/m in h's update, m all devices | contribution.share: 1/N, or the device's share of all examples |

Unfinished work: the paper sets h_i to the device's gradient at an exact minimiser of its regularised loss, and
h_i - alpha delta_i is that gradient only there. After a few SGD steps it is a damped step towards it. The fixed point
does not move: once no device moves, every delta is zero, h stays the same and is zero, and so the mean of the h_i,
which are then the devices' gradients, is zero. What must hold for this is h = sum(share_i h_i): the aggregator moves h
by the update *as sent*, which is what the device moved h_i by, also when the update was completed or scaled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.method import Direction, Method, WeightedSum, WeightedVector, recall, weigh_delta
from fedlga.core.settings import setting
from fedlga.core.types import Assignment, Contribution, Local, ServerState

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector


@final
@dataclass(frozen=True)
class FedDyn(Method):
    """Each device's loss is changed so that its own optimum and that of all devices become the same point."""

    alpha: float = setting(0.01, "strength of the dynamic regularisation", above=0)

    accumulates = ("drift",)
    needs_fresh = "its memories hold moves from the newest weights, and no analysis covers stale ones"

    def local(self, assignment: Assignment, memory: Memory) -> Local:  # noqa: D102
        return Local(constant=-recall(memory, "gradient", assignment.w), pull=self.alpha)

    def finish(  # noqa: D102
        self, assignment: Assignment, delta: Vector, steps: int, memory: Memory
    ) -> tuple[Memory, Memory]:
        return {}, {"gradient": recall(memory, "gradient", assignment.w) - self.alpha * delta}

    def weigh(self, contribution: Contribution) -> Mapping[str, WeightedVector]:  # noqa: D102
        c = contribution
        return {
            "delta": weigh_delta(c),
            "drift": WeightedVector(c.update.delta, c.share, -self.alpha * c.share),  # as sent, not as completed
        }

    def direction(  # noqa: D102
        self, state: ServerState, sums: Mapping[str, WeightedSum], contributions: Sequence[Contribution]
    ) -> Direction:
        return Direction([sums["delta"].mean(), sums["drift"].total / -self.alpha])
