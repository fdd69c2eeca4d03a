"""The audit's table: how close each scale comes to the truth, in regimes from smooth growth to pure noise.

One run a regime, completed with the default scale. Every scale is tried on the very same updates, each with a memory of
its own, so that the columns of a row differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from .audit import measured
from .experiment import Experiment, preset
from .federation import rounds
from .simulation import simulate
from .stragglers import SCALES, Answer, Complete, Policy
from .types import Record, Server, Update

if TYPE_CHECKING:
    from .data.sources import Progress

_PASS, _CIFAR = {"steps_per_epoch": 0}, {"dataset": "cifar-10", "model": "cnn"}
REGIMES: dict[str, dict[str, Any]] = {
    "batch, 0.001": {"lr": 0.001, "rounds": 150},
    "batch, 0.01": {"lr": 0.01, "rounds": 150},
    "batch, 0.1": {"lr": 0.1, "rounds": 150},
    "epoch, 0.001": {**_PASS, "lr": 0.001, "rounds": 40},
    "epoch, 0.01": {**_PASS, "lr": 0.01, "rounds": 40},
    "batch, 0.001, iid": {"lr": 0.001, "partition": "iid", "rounds": 100},
    "batch, 0.01, iid": {"lr": 0.01, "partition": "iid", "rounds": 100},
    "batch, 0.1, iid": {"lr": 0.1, "partition": "iid", "rounds": 100},
    "batch, 0.01, Dirichlet": {"lr": 0.01, "partition": "dirichlet", "rounds": 100},
    "batch, 0.1, Dirichlet": {"lr": 0.1, "partition": "dirichlet", "rounds": 100},
    "CIFAR-10, batch, 0.01": {**_CIFAR, "lr": 0.01, "rounds": 100},
    "CIFAR-10, batch, 0.05": {**_CIFAR, "lr": 0.05, "rounds": 100},
    "CIFAR-10, batch, 0.01, Dirichlet": {**_CIFAR, "lr": 0.01, "partition": "dirichlet", "rounds": 60},
    "CIFAR-10, batch, 0.01, iid": {**_CIFAR, "lr": 0.01, "partition": "iid", "rounds": 60},
}
THE_FIVE = list(REGIMES)[:5]  # the table to beat


@final
@dataclass
class Watching(Policy):
    """Completes as usual, and sees what the other scales would have made of the same updates."""

    policy: Complete
    memories: dict[str, Server] = field(default_factory=dict[str, Server])
    sums: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])

    def answer(self, server: Server, updates: Iterable[Update]) -> Answer:  # noqa: D102
        updates = list(updates)
        for scale in SCALES:
            own = self.memories.get(scale, replace(server, memory={}))
            answer = replace(self.policy, scale=scale).answer(own, updates)
            self.memories[scale] = replace(own, memory={**own.memory, **(answer.memory or {})})
            seen, total = measured(updates, list(answer.updates)), self.sums.setdefault(scale, {})
            for name in ("completed", "sent", "best", "mean_completed", "mean_sent", "stragglers"):
                total[name] = total.get(name, 0.0) + seen[name]
        return self.policy.answer(server, updates)

    def row(self) -> dict[str, float]:
        """The error of each scale, of the best multiple, and of trusted on the averaged update."""
        errors = {scale: total["completed"] / total["sent"] for scale, total in self.sums.items()}
        trusted = self.sums["trusted"]
        return {
            **errors,
            "best": trusted["best"] / trusted["sent"],
            "trusted_mean": trusted["mean_completed"] / trusted["mean_sent"],
            "stragglers": trusted["stragglers"],
        }


def regime(name: str, *, rounds: int | None = None, seed: int = 0, base: str = "paper") -> Experiment:
    """The experiment behind a row; `base` is another preset, for a try on small data."""
    changes = {key: value for key, value in REGIMES[name].items() if base == "paper" or key not in _CIFAR}
    shown = {**changes, "rounds": rounds or changes["rounds"], "seed": seed, "audit": True, "method": "fedavg"}
    return preset(base).changed({**shown, "stragglers": "complete", "evaluate_every": shown["rounds"]})


def audited(
    experiment: Experiment, *, data_dir: str | Path | None = None, progress: Progress | None = None
) -> Iterator[Record | dict[str, float]]:
    """Run one regime: its records as they come, and at the end its row."""
    with simulate(experiment, data_dir=data_dir, progress=progress) as simulation:
        policy = simulation.federation.policy
        assert isinstance(policy, Complete)
        watching = Watching(policy)
        watched = replace(simulation.federation, policy=watching)
        for _, record in rounds(watched, simulation.start, experiment.rounds):
            yield record
    yield watching.row()
