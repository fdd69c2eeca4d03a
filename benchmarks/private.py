"""Private completing beside the open one, and beside `keep`: what a model loses if the aggregator sees sums only.

    .venv/bin/python benchmarks/private.py [--out results/private]      continues what was interrupted

Each row is one run: the same devices, batches and stragglers for all arms of a seed. With `noise`, devices shorten what
they send to CLIP, and the sum gets Gaussian noise of NOISE * CLIP in every parameter (McMahan et al., Learning
Differentially Private Recurrent Language Models, ICLR 2018). A guarantee worth its name needs a NOISE near 1, and so
rounds of thousands of devices; this shows that the exponent follows noisy steps too. Accuracy is the mean over the
evaluations of the last 20 of 100 rounds.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.round import run_rounds
from fedlga.core.types import Assignment, Update
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

OUT = Path(__file__).parents[1] / "results" / "private"
SEEDS = range(5)
ROUNDS, EVERY, LAST = 100, 5, 4
CLIP, NOISE = 1.0, 0.002
LOG_NORMAL: dict[str, Any] = {"slow_classes": [], "speed_sigma": 1.2, "partition": "dirichlet", "partition_alpha": 0.3}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"fleet, rate {lr:g}": ("fleet", {"lr": lr}) for lr in (0.003, 0.01, 0.03, 0.1)},
    "fleet, FedAdam, rate 0.03": ("fleet", {"lr": 0.03, "server_optimizer": "adam", "eta_g": 0.01}),
    "log-normal speeds, rate 0.1": ("fleet", {"lr": 0.1, **LOG_NORMAL}),
    "paper, rate 0.01": ("paper", {"lr": 0.01, "method": "fedavg"}),
}
PRIVATE = {"stragglers": "complete", "private": True}
ARMS: dict[str, dict[str, Any]] = {
    "open": {"stragglers": "complete"},
    "private": PRIVATE,
    "keep": {"stragglers": "keep"},
    "private, noise": PRIVATE,
    "keep, noise": {"stragglers": "keep"},
}


NOISY = "fleet, rate 0.03"  # the setting with noise


class NoisyBackend:
    """Devices clip what they send, and the first of a round brings the noise of all: it goes into the sum."""

    def __init__(self, backend: Any, seed: int) -> None:
        """`backend` does the work."""
        self._backend, self._rng = backend, torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:
        """Yield the updates as the aggregator gets them."""
        for count, update in enumerate(self._backend.run(assignments)):
            delta = update.delta * min(1.0, CLIP / (float(update.delta.norm()) + 1e-12))
            if count == 0:
                delta = delta + NOISE * CLIP * torch.randn(len(delta), generator=self._rng)
            yield replace(update, delta=delta)


def measure(setting: str, arm: str, seed: int) -> dict[str, Any]:
    """Run one federation."""
    name, changes = SETTINGS[setting]
    plain = {"rounds": ROUNDS, "backend": "serial", "evaluate_every": EVERY, "seed": seed, "outlier_bound": 0.0}
    experiment = preset(name).changed({**plain, **changes, **ARMS[arm]})
    with simulate(experiment) as simulation:
        federation = simulation.federation
        if arm.endswith("noise"):
            noisy: Any = NoisyBackend(federation.backend, seed)
            federation = replace(federation, backend=noisy)
        records = [record for _, record in run_rounds(federation, simulation.start, ROUNDS)]
    shown = [r for r in records if r.metrics.get("accuracy") is not None][-LAST:]
    row: dict[str, Any] = {"setting": setting, "arm": arm, "seed": seed}
    for measured in ("accuracy", "accuracy_slow"):
        values = [value for r in shown if (value := r.metrics.get(measured)) is not None]
        row[measured] = statistics.fmean(values) if values else None
    exponents = [r.growth for r in records[-20:] if r.growth is not None]
    return {**row, "exponent": statistics.fmean(exponents) if exponents else None}


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "private.csv"
    rows: list[dict[str, Any]] = list(csv.DictReader(file.open(encoding="utf-8"))) if file.exists() else []
    done = {(row["setting"], row["arm"], int(row["seed"])) for row in rows}
    for seed in SEEDS:
        for setting in SETTINGS:
            for arm in ARMS:
                if (setting, arm, seed) not in done and (setting == NOISY or not arm.endswith("noise")):
                    rows.append(measure(setting, arm, seed))
                    print(rows[-1], flush=True)
                    write_atomically(file, format_csv(rows))


if __name__ == "__main__":
    main()
