"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021. Algorithm 1.

| paper | here |
|---|---|
| alpha | alpha |
| grad L_k(theta_k^{t-1}) | h_i, the device's memory["gradient"]; starts at zero |
| h^t | server.memory["drift"]; starts at zero |
| 1/m in h's update, m all devices | update.share: 1/N, or the device's share of all examples |

Unfinished work: the paper sets h_i to the device's gradient at an exact minimiser of its regularised loss, and
h_i - alpha delta_i is that gradient only there. After a few SGD steps it is a damped step towards it. The fixed point
does not move: once nobody moves, every delta is zero, h stands still and is zero, and so the mean of the h_i, which
are then the devices' gradients, is zero. What must hold for this is h = sum(share_i h_i): the aggregator moves h
by the update *as sent*, which is what the device moved h_i by, also when the update was completed or scaled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from ..settings import setting
from ..types import Local, Server, Task, Update
from .base import Method, mean_delta, remembered

if TYPE_CHECKING:
    from ..types import Memory, Vector


@final
@dataclass(frozen=True)
class FedDyn(Method):
    """Each device's loss is bent so that its own optimum and everyone's become the same point."""

    alpha: float = setting(0.01, "strength of the dynamic regularisation", above=0)

    def local(self, task: Task, memory: Memory) -> Local:  # noqa: D102
        return Local(constant=-remembered(memory, "gradient", task.w), pull=self.alpha)

    def finish(self, task: Task, delta: Vector, steps: int, memory: Memory) -> tuple[Memory, Memory]:  # noqa: D102
        return {}, {"gradient": remembered(memory, "gradient", task.w) - self.alpha * delta}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:  # noqa: D102
        drift = remembered(server.memory, "drift", server.w).clone()

        def drifting() -> Iterable[Update]:
            for u in updates:
                drift.add_(u.delta, alpha=-self.alpha * u.share)
                yield u

        w = server.w + mean_delta(drifting()) - drift / self.alpha
        return replace(server, w=w, memory={**server.memory, "drift": drift})
