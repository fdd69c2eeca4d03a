"""Does any pair of rates give FedLGA the paper's factor over FedAvg? Rounds to 65 % over eta_l and eta_g.

    .venv/bin/python benchmarks/rates.py [--work DIR] [--out results/rates/rates.csv]

The paper reports 60 rounds for FedLGA and 116 for FedAvg on Fashion-MNIST, a factor of 1.9, and states neither rate.
This is the preset `paper` with every pair of a local rate and a global rate (the corollary suggests eta_g = sqrt(E K),
about 7), under both readings of a unit of local work (a batch, a pass over the data) and both kinds of sampling. A run
ends at the target. Runs go in parallel, one a core; what is done is kept in the work folder and not run again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.arms import Arm
from fedlga.experiments.parallel import Job, RunPool
from fedlga.experiments.presets import preset

OUT = Path(__file__).parents[1] / "results" / "rates" / "rates.csv"
BOTH = [Arm("fedavg", "keep"), Arm("fedlga", "complete")]
OTHERS = [Arm(name, "keep") for name in ("fedprox", "fednova", "scaffold", "feddyn")]
BATCH_RATES = (0.00075, 0.0025, 0.0075, 0.025, 0.075)


@dataclass(frozen=True)
class Sweep:
    """Arms over a grid of rates, in one variant of the paper's setting."""

    name: str
    changes: dict[str, Any]
    arms: list[Arm]
    rates: tuple[float, ...]
    global_rates: tuple[float, ...]
    seeds: tuple[int, ...]


SWEEPS = [
    Sweep("batch", {}, BOTH, BATCH_RATES, (1, 2, 7), (0, 1)),
    Sweep("batch", {}, OTHERS, BATCH_RATES[:4], (1, 7), (0,)),
    Sweep("batch, scheme I", {"sampling": "with-replacement"}, BOTH, BATCH_RATES[:4], (1, 7), (0, 1)),
    Sweep(
        "epoch",
        {"steps_per_epoch": 0, "rounds": 30},
        BOTH,
        (0.0001, 0.001),
        (1, 7),
        (0, 1),
    ),
]


def collect_jobs(work: Path) -> list[tuple[dict[str, Any], Job]]:
    """Return every run with the columns that describe it, those that end soonest first."""
    jobs: list[tuple[dict[str, Any], Job]] = []
    for s in SWEEPS:
        for seed in s.seeds:
            for arm in s.arms:
                for lr in s.rates:
                    for eta_g in s.global_rates:
                        changes = {"stop_at_target": True, "backend": "serial", "rounds": 150}
                        base = preset("paper").changed({**changes, **s.changes})
                        e = arm.add({"lr": lr, "sgd.eta_g": float(eta_g)}).experiment(base, seed)
                        row = {"variant": s.name, "method": arm.method, "stragglers": arm.policy}
                        row |= {"lr": lr, "eta_g": eta_g, "seed": seed}
                        folder = work / s.name.replace(", ", "-").replace(" ", "-") / arm.label
                        jobs.append((row, Job(e, folder / f"lr={lr:g},eta_g={eta_g:g}" / f"seed-{seed}")))
    return jobs


def main() -> None:
    """Read the command line, do the runs, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("tunings/rates"), help="where the runs are kept")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    jobs = collect_jobs(arguments.work)
    row_of = {job.folder: row for row, job in jobs}
    done: dict[Path, dict[str, Any]] = {}
    with RunPool() as pool:
        for outcome in pool.run([job for _, job in jobs]):
            s = outcome.summary
            row = row_of[outcome.job.folder]
            results = ("rounds_to_target", "best_accuracy", "rounds", "diverged")
            done[outcome.job.folder] = {**row, **{name: s.get(name) for name in results}}
            print(len(done), "of", len(jobs), done[outcome.job.folder], flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.out, format_csv([done[job.folder] for _, job in jobs if job.folder in done]))


if __name__ == "__main__":
    main()
