"""A user's own methods, which do things that none of the six does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from fedlga.core.method import Direction, Method
from fedlga.core.settings import setting


@final
@dataclass(frozen=True)
class Forgetful(Method):
    """A device counts its rounds, and forgets the count after the second one.

    The aggregator remembers the next weights under two names, which are one tensor. One setting may be unset.
    """

    limit: float | None = setting(None, "unset: no limit")

    def finish(self, assignment, delta, steps, memory):
        count = float(memory["count"][0]) + 1 if "count" in memory else 1.0
        return {}, {} if count > 2 else {"count": torch.full((3,), count), "again": torch.full((3,), count)}

    def direction(self, state, sums, contributions):
        mean = sums["delta"].mean()
        average = mean + state.w
        return Direction([mean], memory={"average": average, "again": average})


@final
@dataclass(frozen=True)
class Short(Method):
    """It uploads a vector that is shorter than the model."""

    uploads = ("loss",)

    def finish(self, assignment, delta, steps, memory):
        return {"loss": torch.ones(1)}, memory

    def direction(self, state, sums, contributions):
        return Direction([sums["delta"].mean()])
