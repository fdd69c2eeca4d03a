"""What a scale leaves out for good: errors of single updates, and of their sums over a run.

    .venv/bin/python benchmarks/lasting.py [--rounds N] [SEED...]

The preset `fleet`, in which the same devices never finish. There is one run for each seed, completed with `trusted`;
every scale is tried on the same updates. The first number of each scale is the audit's: |true - completed| over
|true - sent|, summed over all unfinished updates. For the second, each device's updates are summed over the run before
the distance is taken: noise averages out of such a sum, but what is missing every time does not.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch

from fedlga.core.completion.digest import UpdateDigest
from fedlga.core.policies.base import Decision, Policy
from fedlga.core.policies.complete import Complete
from fedlga.core.round import run_rounds
from fedlga.core.types import ServerState, Update
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

SCALES = {
    "trusted": Complete(),
    "trusted, each update alone": Complete(),
    "growth": Complete(scale="growth"),
    "linear": Complete(scale="linear"),
    "as sent": Complete(scale=1.0),
}


@final
@dataclass
class ErrorSums(Policy):
    """Completes with the first scale, and adds up what each scale leaves out of the same updates."""

    states: dict[str, ServerState] = field(default_factory=dict[str, ServerState])
    single: dict[str, float] = field(default_factory=dict[str, float])
    missing: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict[tuple[str, int], torch.Tensor])

    needs_all = True

    @property
    def needs_sketches(self) -> bool:  # noqa: D102
        return True

    def decide(  # noqa: D102
        self, state: ServerState, updates: Sequence[Update], digests: Mapping[int, UpdateDigest]
    ) -> Decision:
        decisions: list[Decision] = []
        for name, policy in SCALES.items():
            own = self.states.get(name, replace(state, memory={}))
            decision = policy.decide(own, updates, digests)
            memory = {**own.memory, **decision.memory}
            if "alone" in name and "heard" in memory:  # forget how many unfinished reports there were in a row
                memory["heard"] = memory["heard"] * torch.tensor([1, 0])
            self.states[name] = replace(own, memory=memory)
            decisions.append(decision)
            self._add(name, decision, updates)
        return decisions[0]

    def _add(self, name: str, decision: Decision, updates: Sequence[Update]) -> None:
        for u in updates:
            if u.truth is not None:
                missing = u.truth - decision.treatments[u.device].scale * u.delta
                self.single[name] = self.single.get(name, 0.0) + float(missing.norm())
                key = name, u.device
                self.missing[key] = self.missing[key] + missing if key in self.missing else missing

    def errors(self, name: str) -> tuple[float, float]:
        """Return a scale's error on single updates, and on their sums."""
        lasting = {n: sum(float(v.norm()) for (m, _), v in self.missing.items() if m == n) for n in (name, "as sent")}
        return self.single[name] / self.single["as sent"], lasting[name] / lasting["as sent"]


def measure(seed: int, rounds: int | None) -> ErrorSums:
    """Run the preset once; return the errors of all scales."""
    experiment = preset("fleet").changed({"audit": True, "seed": seed, "evaluate_every": 150})
    policy = ErrorSums()
    with simulate(experiment) as simulation:
        aggregator = replace(simulation.federation.aggregator, policy=policy)
        federation = replace(simulation.federation, aggregator=aggregator)
        for _ in run_rounds(federation, simulation.start, rounds or experiment.rounds):
            pass
    return policy


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description="Errors of single updates, and of their sums over a run.")
    parser.add_argument("seeds", type=int, nargs="*", default=[0, 1])
    parser.add_argument("--rounds", type=int, help="rounds of each run; as many as the preset has, if not set")
    options = parser.parse_args()
    print(f"{'seed':<5} {'scale':<28} {'single':>7} {'summed':>7}")
    for seed in options.seeds:
        policy = measure(seed, options.rounds)
        for name in SCALES:
            single, summed = policy.errors(name)
            print(f"{seed:<5} {name:<28} {single:>7.2f} {summed:>7.2f}", flush=True)


if __name__ == "__main__":
    main()
