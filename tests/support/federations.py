"""Small federations for tests: quadratics that can be worked out by hand, and a fleet that follows a script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedlga.backends.serial import SerialBackend
from fedlga.core.aggregation.base import AggregationRule
from fedlga.core.aggregation.mean import Mean
from fedlga.core.aggregator import Aggregator
from fedlga.core.completion.digest import UpdateDigest, summarise
from fedlga.core.fleet import Effort, Fleet, Workload
from fedlga.core.method import Method
from fedlga.core.optimizers.base import ServerOptimizer
from fedlga.core.optimizers.sgd import Sgd
from fedlga.core.policies.base import Policy
from fedlga.core.policies.keep import Keep
from fedlga.core.rates import RateSchedule
from fedlga.core.round import Federation, run_rounds
from fedlga.core.types import Record, ServerState, Update
from fedlga.learning.evaluation import TestSet
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.problem import Problem
from fedlga.learning.training import Devices, TrainingOptions


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
    """Device d does script[round][d] of its steps; the last row of the script repeats."""

    script: Sequence[Sequence[int]] = ()

    def efforts(self, round: int, devices: Sequence[int]) -> list[Effort]:
        steps = self.script[min(round, len(self.script) - 1)]
        asked, deadline = self.workload.steps, self.workload.deadline
        return [
            Effort(d, steps[d], asked[d], deadline * asked[d] / max(steps[d], 1), lost=steps[d] == 0) for d in devices
        ]


def quadratics(
    method: Method,
    *,
    centres: Sequence[tuple[float, float]],
    script: Sequence[Sequence[int]],
    asked: int,
    lr: float,
    lr_decay: float = 0.0,
    curvatures: Sequence[float] | None = None,
    start: tuple[float, float] = (0.0, 0.0),
    policy: Policy | None = None,
    rule: AggregationRule | None = None,
    optimizer: ServerOptimizer | None = None,
    cohort: int | None = None,
    copies: Sequence[int] | None = None,
    **settings: Any,
) -> tuple[Federation, ServerState]:
    """Return a federation in which device i holds the quadratic with centre i; `copies` of it, if sizes should differ.

    A device whose script says 0 sends nothing, so fewer than N devices report.
    """
    curvatures = curvatures or [1.0] * len(centres)
    copies = copies or [1] * len(centres)
    pixels = [[a, *b] for a, b, n in zip(curvatures, centres, copies, strict=True) for _ in range(n)]
    ends = np.cumsum(copies)
    model = FlatModel(Quadratic(start), lambda losses, labels: losses.mean())
    images, labels = torch.tensor(pixels).reshape(-1, 1, 1, 3), torch.zeros(len(pixels), dtype=torch.int64)
    problem = Problem(model, model.criterion, [], None)
    devices = Devices(
        method=method,
        model=model,
        examples=TensorExamples(images, labels),
        parts=[np.arange(end - n, end) for n, end in zip(copies, ends, strict=True)],
        options=TrainingOptions(batch_size=1),
    )
    defaults: dict[str, Any] = {"momentum": 0.0, "seed": 0, "replacement": False, "by_examples": False}
    federation = Federation(
        aggregator=Aggregator(method, policy or Keep(), rule or Mean(), optimizer or Sgd()),
        fleet=ScriptedFleet(Workload(0, [asked] * len(centres), asked, float(asked)), script),
        backend=SerialBackend(devices, TestSet(problem, TensorExamples(images[:0], labels[:0]))),
        evaluate=lambda scores: {"accuracy": 0.0, "loss": 0.0},
        metrics=("accuracy", "loss"),
        examples=list(copies),
        cohort=cohort or len(centres),
        rates=RateSchedule(lr, "exponential", lr_decay),
        **{**defaults, **settings},
    )
    return federation, ServerState(round=0, w=model.vector.clone())


def play(federation: Federation, state: ServerState, count: int) -> tuple[ServerState, list[Record]]:
    """Run `count` rounds; return the last state and all records."""
    rounds = list(run_rounds(federation, state, state.round + count))
    return rounds[-1][0], [record for _, record in rounds]


def update(device: int = 0, delta: Sequence[float] = (1.0, 0.0), steps: int = 1, asked: int = 1, **more: Any) -> Update:
    """Return an update as a device would send it."""
    defaults: dict[str, Any] = {"examples": 1, "train_loss": 0.0, "uploads": {}, "lr": 0.1, "momentum": 0.0}
    return Update(device=device, delta=torch.tensor(delta), steps=steps, steps_asked=asked, **{**defaults, **more})


def close(vector: torch.Tensor, expected: Sequence[float], tolerance: float = 1e-5) -> None:
    """Assert that a vector holds these numbers."""
    torch.testing.assert_close(vector, torch.tensor(expected), rtol=0, atol=tolerance)


def digests_of(updates: Sequence[Update]) -> dict[int, UpdateDigest]:
    """Return what completion reads of each update, by device."""
    return {u.device: summarise(u.delta) for u in updates}
