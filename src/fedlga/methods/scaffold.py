"""Scaffold: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, ICML 2020.

Algorithm 1, option II: the new control is the mean gradient along the local path, at no extra gradient.

| paper | here |
|---|---|
| c, c_i | server.memory["control"], the device's memory["control"]; both start at zero |
| K (local steps) | effective_steps of the steps really done (momentum included) |
| eta_l | task.lr: the rate this work was done at, not the schedule's next |
| c_i^+ - c_i | update.extra["control"] |
| 1/N in c's update | update.share: 1/N, or the device's share of all examples |
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from ..settings import setting
from ..types import Local, Server, Task, Update
from .base import Method, effective_steps, mean_delta, remembered

if TYPE_CHECKING:
    from ..types import Memory, Vector


@final
@dataclass(frozen=True)
class Scaffold(Method):
    """Each device corrects its gradients by how its own mean gradient differs from everyone's."""

    eta_g: float = setting(1.0, "global learning rate: multiplies the averaged update", above=0)

    sends = ("control",)
    uploads = ("control",)

    def local(self, task: Task, memory: Memory) -> Local:  # noqa: D102
        return Local(constant=_control(task.shared, task) - _control(memory, task))

    def finish(self, task: Task, delta: Vector, steps: int, memory: Memory) -> tuple[Memory, Memory]:  # noqa: D102
        path = task.lr * effective_steps(steps, momentum=task.momentum)
        # c_i^+ = c_i - c - delta / (K eta_l)
        change = -_control(task.shared, task) - delta / path
        return {"control": change}, {"control": _control(memory, task) + change}

    def aggregate(self, server: Server, updates: Iterable[Update]) -> Server:  # noqa: D102
        control = remembered(server.memory, "control", server.w).clone()

        def controlled() -> Iterable[Update]:
            for u in updates:
                control.add_(u.extra["control"], alpha=u.share)
                yield u

        w = server.w + self.eta_g * mean_delta(controlled())
        return replace(server, w=w, memory={**server.memory, "control": control})


def _control(memory: Memory, task: Task) -> Vector:
    return remembered(memory, "control", task.w)
