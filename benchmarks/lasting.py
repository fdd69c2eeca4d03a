"""What a scale leaves out for good: errors of single updates, and of their sums over a run.

    .venv/bin/python benchmarks/lasting.py [SEED...]

The preset `fleet`, in which the same devices never finish. One run a seed, completed as usual; every scale is tried on
the same updates. The first number of each scale is the audit's: |true - completed| over |true - sent|, summed over all
unfinished updates. In the second each device's updates are summed over the run before the distance is taken: noise
averages out of it, and what is missing every time does not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from fedlga.experiment import preset
from fedlga.federation import rounds
from fedlga.simulation import simulate
from fedlga.stragglers import Answer, Complete, Policy
from fedlga.types import Server, Update

SCALES = {
    "trusted": Complete(),
    "trusted, each update alone": Complete(),
    "growth": Complete(scale="growth"),
    "linear": Complete(scale="linear"),
    "as sent": Complete(scale=1.0),
}


@dataclass
class Summing(Policy):
    """Completes with the first scale, and adds up what each would have made of the same updates."""

    servers: dict[str, Server] = field(default_factory=dict)
    single: dict[str, float] = field(default_factory=dict)
    sums: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def answer(self, server: Server, updates: Iterable[Update]) -> Answer:
        """Complete."""
        updates = list(updates)
        answers: list[Answer] = []
        for name, policy in SCALES.items():
            own = self.servers.get(name, replace(server, memory={}))
            answer = policy.answer(own, updates)
            memory = {**own.memory, **(answer.memory or {})}
            if "alone" in name and "heard" in memory:  # forget how many unfinished reports there were
                memory["heard"] = memory["heard"] * torch.tensor([1, 0])
            self.servers[name] = replace(own, memory=memory)
            answers.append(answer)
            for sent, used in zip(updates, answer.updates, strict=True):
                if sent.truth is not None:
                    missing = sent.truth - used.scale * sent.delta
                    self.single[name] = self.single.get(name, 0.0) + float(missing.norm())
                    self.sums[name, sent.device] = self.sums.get((name, sent.device), 0) + missing
        return answers[0]

    def error(self, name: str) -> tuple[float, float]:
        """Of single updates, and of their sums."""
        lasting = {n: sum(float(v.norm()) for (m, _), v in self.sums.items() if m == n) for n in (name, "as sent")}
        return self.single[name] / self.single["as sent"], lasting[name] / lasting["as sent"]


def main(seeds: list[int]) -> None:
    """Print a table."""
    print(f"{'seed':<5} {'scale':<28} {'single':>7} {'summed':>7}")
    for seed in seeds:
        experiment = preset("fleet").changed({"audit": True, "seed": seed, "evaluate_every": 150})
        with simulate(experiment) as simulation:
            policy = Summing()
            for _ in rounds(replace(simulation.federation, policy=policy), simulation.start, experiment.rounds):
                pass
        for name in SCALES:
            single, summed = policy.error(name)
            print(f"{seed:<5} {name:<28} {single:>7.2f} {summed:>7.2f}")


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or [0, 1])
