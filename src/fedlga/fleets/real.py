"""Real devices: they are as slow as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fedlga.core.fleet import Effort, Fleet
from fedlga.core.settings import BadInput


@final
@dataclass(frozen=True)
class RealFleet(Fleet):
    """All devices are asked for all their work; how far each gets by the deadline, they show."""

    real = True

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        if experiment["backend"] != "flower":
            raise BadInput(f"fleet: got 'real' with backend {experiment['backend']!r}; it takes backend 'flower'")
        for name in ("audit", "dropout", "record"):
            if experiment[name]:
                raise BadInput(f"fleet: got 'real' with {name}; it needs simulated devices")
        return dict(settings)

    @classmethod
    def describe(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:  # noqa: D102
        return f"deadline {experiment['deadline'] or experiment['epochs']:g} real seconds"

    def efforts(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        steps = self.workload.steps
        return [Effort(d, steps[d], steps[d], self.workload.deadline) for d in devices]
