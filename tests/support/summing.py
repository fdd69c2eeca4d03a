"""A backend as secure aggregation makes it: each update arrives under masks, and only their sum means something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from fedlga.core.types import Assignment, Update


class SummingBackend:
    """Pairs of devices agree on masks that one adds and the other takes away (Bonawitz et al., CCS 2017, section 4).

    The masks are a hundred times as long as the updates. `seen` are the vectors that the aggregator got, `sent` the
    updates that the devices hid in them.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._rng = torch.Generator().manual_seed(1)
        self.seen: list[torch.Tensor] = []
        self.sent: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:
        updates = [u.copied() for u in self._backend.run(assignments)]
        masks = [torch.zeros_like(u.delta) for u in updates]
        for i in range(len(updates)):
            for j in range(i):
                mask = torch.randn(len(masks[i]), generator=self._rng)
                mask = (mask * 64).round() / 64  # few digits: adding and taking away is exact
                masks[i] += mask
                masks[j] -= mask
        for u, mask in zip(updates, masks, strict=True):
            self.seen.append(u.delta + mask)
            self.sent.append(u.delta)
            yield replace(u, delta=self.seen[-1])
