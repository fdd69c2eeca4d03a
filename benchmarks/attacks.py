"""What hostile devices can do: each attack on each method, with plain averaging, with the defaults, with robust rules.

    .venv/bin/python benchmarks/attacks.py [--seeds 0-2] [--out results/attacks]      continues what was interrupted
    .venv/bin/python benchmarks/attacks.py --honest                how long honest updates are, and where they point

Digits, 20 devices of which 4 are hostile in every round that they take part in, 60 rounds; accuracy is the mean of the
last ten rounds. `plain` is averaging without any bound, `default` what an experiment has if nothing is said.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedlga.core import guard
from fedlga.core.files import format_csv, write_atomically
from fedlga.core.round import run_rounds
from fedlga.core.types import Assignment, Contribution, Update
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

OUT = Path(__file__).parents[1] / "results" / "attacks"
METHODS = ("fedavg", "fedlga", "scaffold", "feddyn")
HOSTILE = range(4)  # of 20 devices
ROUNDS, LAST = 60, 10
SETTINGS = {"devices": 20, "cohort": 20, "rounds": ROUNDS, "partition": "dirichlet", "partition_alpha": 1.0}
FLEETS: dict[str, dict[str, Any]] = {"all equal": {"fleet": "equal"}, "half are slow": {"fleet": "paper", "rho": 0.5}}
DEFENCES: dict[str, dict[str, Any]] = {
    "default": {},
    "plain": {"outlier_bound": 0.0},
    "outlier_bound 5": {"outlier_bound": 5.0},
    "median": {"aggregation": "median"},
    "trimmed-mean": {"aggregation": "trimmed-mean", "trim": 0.25},
}


def scale(factor: float) -> Callable[[torch.Tensor, torch.Generator], torch.Tensor]:
    """Return what multiplies a vector."""
    return lambda vector, _: vector * factor


def make_noise(vector: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """Return noise that is a hundred times as long as the vector."""
    noise = torch.randn(vector.shape, generator=rng)
    return noise * (100 * vector.norm() / noise.norm())


VECTORS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "not a number": lambda vector, _: torch.full_like(vector, math.nan),
    "noise x 100": make_noise,
    "sign flips x 10": scale(-10.0),
    "sign flips x 3.9": scale(-3.9),  # knows the rule: updates are compared from four usual lengths on
    "1e38": lambda vector, _: torch.full_like(vector, 1e38),
}
ATTACKS = ("none", *VECTORS, "2^40 examples", "one step of all")


def corrupt(update: Update, attack: str, rng: torch.Generator) -> Update:
    """Return what a hostile device sends in place of its update."""
    if attack in VECTORS:
        change = VECTORS[attack]
        uploads = {name: change(vector, rng) for name, vector in update.uploads.items()}
        return replace(update, delta=change(update.delta, rng), uploads=uploads)
    if attack == "2^40 examples":
        return replace(update, examples=2**40, delta=-update.delta)
    if attack == "one step of all":  # all of its work, turned round, as if it were one step: completing multiplies it
        return replace(update, steps=1, delta=-update.delta)
    return update


class HostileBackend:
    """A backend some of whose devices are hostile."""

    def __init__(self, backend: Any, attack: str, seed: int) -> None:
        """`backend` does the work."""
        self._backend, self._attack = backend, attack
        self._rng = torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:
        """Yield the updates; those of hostile devices are changed."""
        for update in self._backend.run(assignments):
            yield corrupt(update, self._attack, self._rng) if update.device in HOSTILE else update


def measure(method: str, fleet: str, attack: str, defence: str, seed: int) -> dict[str, Any]:
    """Run one federation; return its accuracy over the last rounds, and how many updates were left out."""
    changes = {**SETTINGS, **FLEETS[fleet], **DEFENCES[defence], "method": method, "seed": seed, "backend": "serial"}
    changes |= {"averaging": "examples"} if attack == "2^40 examples" else {}
    accuracies: list[float] = []
    refused = received = wrong = 0
    with simulate(preset("digits").changed(changes)) as simulation:
        hostile: Any = HostileBackend(simulation.federation.backend, attack, seed)
        federation = replace(simulation.federation, backend=hostile)
        for _, record in run_rounds(federation, simulation.start, ROUNDS):
            accuracies.append(record.accuracy or 0.0)
            received += len(record.devices)
            refused += len(record.refused)
            wrong += len([device for device in record.refused if device not in HOSTILE])
    accuracies += [0.1] * (ROUNDS - len(accuracies))  # it ended: nothing was learned after that
    names = {"method": method, "fleet": fleet, "attack": attack, "defence": defence, "seed": seed}
    accuracy = sum(accuracies[-LAST:]) / LAST
    return {**names, "accuracy": accuracy, "refused": refused, "honest_refused": wrong, "received": received}


def measure_honest(name: str, rounds: int, **changes: Any) -> dict[str, Any]:
    """Return how long honest updates of a run are, in usual lengths, and what is said of their directions."""
    longest: dict[str, float] = {}
    cosines: list[float] = []
    suspects = against = 0
    judge, compare = guard.Guard._judge, guard.Guard.compare  # pyright: ignore[reportPrivateUsage]
    find_cosine = guard.find_cosine

    def note_length(self: Any, update: Update) -> bool:
        for vector, length in self._lengths[update.device].items():
            if len(self._known[vector]) >= guard.LEAST_KNOWN:
                usual = self._limit(vector, update.steps, update.lr) / self._bound
                longest[vector] = max(longest.get(vector, 0.0), length / usual)
        return judge(self, update)

    def note_suspects(self: Any, contributions: Sequence[Contribution], *others: Any) -> list[Contribution]:
        nonlocal suspects, against
        kept = compare(self, contributions, *others)
        suspects, against = suspects + len(self.suspects), against + len(contributions) - len(kept)
        return kept

    def note_cosine(one: torch.Tensor, other: torch.Tensor) -> float:
        cosines.append(find_cosine(one, other))
        return cosines[-1]

    guard.Guard._judge, guard.Guard.compare = note_length, note_suspects  # pyright: ignore[reportPrivateUsage]
    guard.find_cosine = note_cosine
    experiment = preset(name).changed({"rounds": rounds, "backend": "serial", "evaluate_every": 10**6, **changes})
    try:
        with simulate(experiment) as simulation:
            refused = sum(len(r.refused) for _, r in run_rounds(simulation.federation, simulation.start, rounds))
    finally:
        guard.Guard._judge, guard.Guard.compare = judge, compare  # pyright: ignore[reportPrivateUsage]
        guard.find_cosine = find_cosine
    settings = " ".join(f"{key}={value}" for key, value in changes.items() if key != "method")
    row = {"preset": name, "method": experiment.method, "settings": settings, "rounds": rounds}
    row |= {"longest": longest.get("delta"), "longest_upload": longest.get("control"), "refused": refused}
    return {**row, "suspects": suspects, "smallest_cosine": min(cosines, default=None), "against": against}


HONEST: list[tuple[str, int, dict[str, Any]]] = [
    *(("digits", 200, {"method": method}) for method in (*METHODS, "fednova", "fedprox")),
    *(("paper", 100, {"method": method}) for method in METHODS),
    ("fleet", 100, {"method": "fedavg", "lr": 0.1}),
    ("fleet", 100, {"method": "fedavg", "stragglers": "keep", "lr": 0.1}),
    ("fleet", 100, {"method": "fednova", "stragglers": "keep", "lr": 0.1}),
    ("fleet", 60, {"method": "fedavg", "slow_classes": [], "partition": "dirichlet", "partition_alpha": 0.1}),
    ("phones", 40, {"method": "fedavg"}),
    ("shakespeare", 10, {"method": "fedavg"}),
]


def main() -> None:
    """Run what is missing, and write a row a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0-2")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="some of them, with commas between")
    parser.add_argument("--defences", default=",".join(DEFENCES), help="some of them, with commas between")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--honest", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.honest:
        rows = list[dict[str, Any]]()
        for name, rounds, changes in HONEST:
            rows.append(measure_honest(name, rounds, **changes))
            print(rows[-1], flush=True)
            write_atomically(options.out / "honest.csv", format_csv(rows))
        return
    first, _, last = options.seeds.partition("-")
    file = options.out / "attacks.csv"
    rows = read_rows(file)
    done = {tuple(str(row[name]) for name in ("method", "fleet", "attack", "defence", "seed")) for row in rows}
    seeds, defences = range(int(first), int(last or first) + 1), options.defences.split(",")
    for defence, seed, attack in itertools.product(defences, seeds, options.attacks.split(",")):
        for method, fleet in itertools.product(METHODS, FLEETS):
            if (method, fleet, attack, defence, str(seed)) in done:
                continue
            rows.append(measure(method, fleet, attack, defence, seed))
            print(" ".join(f"{value}" for value in rows[-1].values()), flush=True)
        write_atomically(file, format_csv(rows))


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of an earlier call."""
    import csv

    return list(csv.DictReader(file.open(encoding="utf-8"))) if file.exists() else []


if __name__ == "__main__":
    main()
