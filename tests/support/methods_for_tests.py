"""Methods of somebody's own, with habits that none of the six has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from fedlga.methods.base import Method, mean_delta
from fedlga.settings import setting


@final
@dataclass(frozen=True)
class Forgetful(Method):
    """A device counts its rounds, and forgets them all after the second. Under a name of its own the aggregator keeps
    the weights themselves: the same vector twice. One setting may be unset.
    """

    limit: float | None = setting(None, "unset: no limit")

    def finish(self, task, delta, steps, memory):
        count = float(memory["count"][0]) + 1 if "count" in memory else 1.0
        return {}, {} if count > 2 else {"count": torch.full((3,), count), "again": torch.full((3,), count)}

    def aggregate(self, server, updates):
        w = mean_delta(updates).add_(server.w)
        return replace(server, w=w, memory={**server.memory, "average": w})


@final
@dataclass(frozen=True)
class Short(Method):
    """What it uploads is not as long as the model."""

    uploads = ("loss",)

    def finish(self, task, delta, steps, memory):
        return {"loss": torch.ones(1)}, memory

    def aggregate(self, server, updates):
        return replace(server, w=mean_delta(updates).add_(server.w))
