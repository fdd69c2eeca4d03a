"""Small federations for tests: quadratics that can be worked out by hand, and a fleet that does what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlga.backends.serial import Serial
from fedlga.completion import Look, look
from fedlga.federation import Federation, rounds
from fedlga.fleet import Effort, Fleet
from fedlga.local import Devices
from fedlga.methods.base import Method
from fedlga.models import FlatModel
from fedlga.stragglers import Keep, Policy
from fedlga.types import Evaluation, Record, Server, Update


class Quadratic(nn.Module):
    """Each example is a quadratic, a/2 |w - b|^2, with a and b in its three pixels. Its gradient is a (w - b)."""

    def __init__(self, start: tuple[float, float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        a, b = images.flatten(1)[:, :1], images.flatten(1)[:, 1:]
        return 0.5 * (a * (self.w - b) ** 2).sum(1)


@dataclass(frozen=True)
class ScriptedFleet(Fleet):
    """Does exactly the steps it is told, round by round; device d does script[round][d] of work[d]."""

    script: Sequence[Sequence[int]] = ()

    def effort(self, round: int, devices: Sequence[int]) -> list[Effort]:
        told = self.script[min(round, len(self.script) - 1)]
        return [
            Effort(d, told[d], self.work[d], self.deadline * self.work[d] / max(told[d], 1), lost=told[d] == 0)
            for d in devices
        ]


def quadratics(
    method: Method,
    *,
    centres: Sequence[tuple[float, float]],
    script: Sequence[Sequence[int]],
    asked: int,
    lr: float,
    curvatures: Sequence[float] | None = None,
    start: tuple[float, float] = (0.0, 0.0),
    policy: Policy | None = None,
    cohort: int | None = None,
    copies: Sequence[int] | None = None,
    **settings: Any,
) -> tuple[Federation, Server]:
    """A federation in which device i holds the quadratic with centre i; `copies` of it, where sizes should differ.

    A device whose script says 0 sends nothing: so N devices with fewer that report.
    """
    curvatures = curvatures or [1.0] * len(centres)
    copies = copies or [1] * len(centres)
    pixels = [[a, *b] for a, b, n in zip(curvatures, centres, copies, strict=True) for _ in range(n)]
    ends = np.cumsum(copies)
    model = FlatModel(Quadratic(start), lambda losses, labels: losses.mean())
    devices = Devices(
        method=method,
        model=model,
        images=torch.tensor(pixels).reshape(-1, 1, 1, 3),
        labels=torch.zeros(len(pixels), dtype=torch.int64),
        parts=[np.arange(end - n, end) for n, end in zip(copies, ends, strict=True)],
        batch_size=1,
    )
    defaults: dict[str, Any] = {"lr_decay": 0.0, "momentum": 0.0, "seed": 0, "replacement": False, "by_examples": False}
    federation = Federation(
        method=method,
        policy=policy or Keep(),
        fleet=ScriptedFleet(0, [asked] * len(centres), asked, float(asked), 0.0, script),
        backend=Serial(devices),
        evaluate=lambda w: Evaluation(0.0, 0.0),
        examples=list(copies),
        cohort=cohort or len(centres),
        lr=lr,
        **{**defaults, **settings},
    )
    return federation, Server(round=0, w=model.vector.clone())


def play(federation: Federation, server: Server, count: int) -> tuple[Server, list[Record]]:
    """Run `count` rounds."""
    played = list(rounds(federation, server, server.round + count))
    return played[-1][0], [record for _, record in played]


def update(device: int = 0, delta: Sequence[float] = (1.0, 0.0), steps: int = 1, asked: int = 1, **more: Any) -> Update:
    """An update as a device would send it."""
    defaults: dict[str, Any] = {"examples": 1, "train_loss": 0.0, "extra": {}, "lr": 0.1, "momentum": 0.0}
    return Update(device=device, delta=torch.tensor(delta), steps=steps, steps_asked=asked, **{**defaults, **more})


def close(vector: torch.Tensor, expected: Sequence[float], tolerance: float = 1e-5) -> None:
    """Assert that a vector holds these numbers."""
    torch.testing.assert_close(vector, torch.tensor(expected), rtol=0, atol=tolerance)


def looks(updates: Sequence[Update]) -> dict[int, Look]:
    """What completing looks at of each update."""
    return {u.device: look(u.delta) for u in updates}
