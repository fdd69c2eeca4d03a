"""The audit's table: how close each scale comes to the truth, in regimes from smooth growth to pure noise.

There is one run for each regime, completed with the default scale. Every scale is tried on the same updates, each with
its own memory, so that the columns of a row differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fedlga.core.audit import Gaps, measure_gaps, measure_length, measure_round
from fedlga.core.completion.digest import UpdateDigest
from fedlga.core.policies.base import Decision, Policy
from fedlga.core.policies.complete import SCALES, Complete
from fedlga.core.round import run_rounds
from fedlga.core.types import Contribution, Record, ServerState, Update
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

if TYPE_CHECKING:
    from fedlga.learning.datasets.sources import Progress

_BATCH, _PASS = {"steps_per_epoch": 1}, {"steps_per_epoch": 0}
_CIFAR = {"dataset": "cifar-10", "model": "cnn", **_BATCH}
REGIMES: dict[str, dict[str, Any]] = {
    "batch, 0.001": {**_BATCH, "lr": 0.001, "rounds": 150},
    "batch, 0.01": {**_BATCH, "lr": 0.01, "rounds": 150},
    "batch, 0.1": {**_BATCH, "lr": 0.1, "rounds": 150},
    "epoch, 0.001": {**_PASS, "lr": 0.001, "rounds": 40},
    "epoch, 0.01": {**_PASS, "lr": 0.01, "rounds": 40},
    "batch, 0.001, iid": {**_BATCH, "lr": 0.001, "partition": "iid", "rounds": 100},
    "batch, 0.01, iid": {**_BATCH, "lr": 0.01, "partition": "iid", "rounds": 100},
    "batch, 0.1, iid": {**_BATCH, "lr": 0.1, "partition": "iid", "rounds": 100},
    "batch, 0.01, Dirichlet": {**_BATCH, "lr": 0.01, "partition": "dirichlet", "rounds": 100},
    "batch, 0.1, Dirichlet": {**_BATCH, "lr": 0.1, "partition": "dirichlet", "rounds": 100},
    "CIFAR-10, batch, 0.01": {**_CIFAR, "lr": 0.01, "rounds": 100},
    "CIFAR-10, batch, 0.05": {**_CIFAR, "lr": 0.05, "rounds": 100},
    "CIFAR-10, batch, 0.01, Dirichlet": {**_CIFAR, "lr": 0.01, "partition": "dirichlet", "rounds": 60},
    "CIFAR-10, batch, 0.01, iid": {**_CIFAR, "lr": 0.01, "partition": "iid", "rounds": 60},
}
THE_FIVE = list(REGIMES)[:5]  # the table to beat


@final
@dataclass
class ScaleComparison(Policy):
    """Completes as usual, and measures what the other scales would have made of the same updates."""

    policy: Complete
    states: dict[str, ServerState] = field(default_factory=dict[str, ServerState])
    sums: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    gaps: dict[str, Gaps] = field(default_factory=dict[str, Gaps])  # by scale, added up over the rounds

    @property
    def needs_all(self) -> bool:  # noqa: D102
        return True

    @property
    def needs_sketches(self) -> bool:  # noqa: D102
        return True

    def decide(  # noqa: D102
        self, state: ServerState, updates: Sequence[Update], digests: Mapping[int, UpdateDigest]
    ) -> Decision:
        received = [Contribution(u) for u in updates]
        for scale in SCALES:
            own = self.states.get(scale, replace(state, memory={}))
            decision = replace(self.policy, scale=scale).decide(own, updates, digests)
            self.states[scale] = replace(own, memory={**own.memory, **decision.memory})
            used = [replace(c, scale=decision.treatments[c.update.device].scale) for c in received]
            gaps = measure_gaps(received, used)
            errors, total = measure_round(received, used, gaps), self.sums.setdefault(scale, {})
            for name in ("completed", "sent", "best", "mean_completed", "mean_sent", "stragglers"):
                total[name] = total.get(name, 0.0) + errors[name]
            if gaps is not None:
                before = self.gaps.get(scale)
                self.gaps[scale] = gaps if before is None else before.add(gaps)
        return self.policy.decide(state, updates, digests)

    def row(self) -> dict[str, float]:
        """Return the errors of each scale, and of the best multiple; updates as sent have an error of 1.

        SCALE: of single updates, the paper's Eq. 3. SCALE_mean: of a round's averaged update. SCALE_sum: of the
        averaged updates added up over the run, which is what the model gets.
        """
        row: dict[str, float] = {}
        for scale, total in self.sums.items():
            gaps = self.gaps[scale]
            row[scale] = total["completed"] / total["sent"]
            row[f"{scale}_mean"] = total["mean_completed"] / total["mean_sent"]
            row[f"{scale}_sum"] = measure_length(gaps.completed) / measure_length(gaps.sent)
        any_scale = self.sums[SCALES[0]]
        return {**row, "best": any_scale["best"] / any_scale["sent"], "stragglers": any_scale["stragglers"]}


def make_regime(name: str, *, rounds: int | None = None, seed: int = 0, base: str = "paper") -> Experiment:
    """Return the experiment behind a row; `base` is another preset, to try it on small data."""
    changes = {key: value for key, value in REGIMES[name].items() if base == "paper" or key not in ("dataset", "model")}
    known = {
        **changes,
        "rounds": changes["rounds"] if rounds is None else rounds,
        "seed": seed,
        "audit": True,
        "method": "fedavg",
    }
    return preset(base).changed({**known, "stragglers": "complete", "evaluate_every": known["rounds"]})


@dataclass(frozen=True)
class RegimeStep:
    """One round of a regime, or (`record` is None) its end, with its row of the table."""

    record: Record | None
    row: dict[str, float] = field(default_factory=dict[str, float])


def run_regime(
    experiment: Experiment, *, data_dir: str | Path | None = None, progress: Progress | None = None
) -> Iterator[RegimeStep]:
    """Run one regime round by round."""
    with simulate(experiment, data_dir=data_dir, progress=progress) as simulation:
        federation = simulation.federation
        policy = federation.policy
        assert isinstance(policy, Complete)
        comparison = ScaleComparison(policy)
        watched = replace(federation, aggregator=replace(federation.aggregator, policy=comparison))
        for _, record in run_rounds(watched, simulation.start, experiment.rounds):
            yield RegimeStep(record)
    yield RegimeStep(None, comparison.row())
