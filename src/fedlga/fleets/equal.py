"""All devices are equally fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from fedlga.core.fleet import Effort, Fleet


@final
@dataclass(frozen=True)
class EqualFleet(Fleet):
    """Every device finishes exactly at the deadline."""

    @classmethod
    def describe(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:  # noqa: D102
        return "equally fast"

    def efforts(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        steps, deadline = self.workload.steps, self.workload.deadline
        return [Effort(d, steps[d], steps[d], deadline) for d in devices]
