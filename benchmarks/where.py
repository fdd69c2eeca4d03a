"""Where a round's time goes: training, evaluation and the rest, beside what the machine's peak would take.

    .venv/bin/python benchmarks/where.py [--out results/simulators/where.csv]

`floor` is the round's floating-point work (as torch counts it) at the sgemm peak of two processes. `step` is one SGD
step on one thread, in a process of its own; `task` what a device's task takes beyond its steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from simulators import gigaflop, sgemm_peak

from fedlga.experiment import Experiment
from fedlga.federation import rounds
from fedlga.kernels.mlp import FusedMLP
from fedlga.runs import table_as_csv, write_atomically
from fedlga.simulation import simulate
from fedlga.types import Task, Update

SETTINGS: dict[str, dict[str, Any]] = {
    "epochs": {"steps_per_epoch": 0, "lr": 0.01, "rounds": 6},
    "batches": {"lr": 0.01, "rounds": 60},
    "resnet20": {"dataset": "cifar-10", "model": "resnet20", "lr": 0.01, "rounds": 5, "evaluate_every": 1000},
}


def row(name: str, peak: float) -> dict[str, Any]:
    """One workload, watched from the aggregator; then one task in this process."""
    experiment = Experiment(method="fedavg", fleet="equal").changed(SETTINGS[name])
    spent: dict[str, list[float]] = {"train": [], "evaluate": [], "round": []}
    with simulate(experiment) as simulation:
        federation, backend = simulation.federation, simulation.federation.backend
        run, evaluate = backend.run, federation.evaluate

        def watched(tasks: Sequence[Task]) -> Iterator[Update]:
            started = time.perf_counter()
            yield from run(tasks)
            spent["train"].append(time.perf_counter() - started)

        def evaluated(w: torch.Tensor) -> Any:
            started = time.perf_counter()
            found = evaluate(w)
            spent["evaluate"].append(time.perf_counter() - started)
            return found

        backend.run = watched
        federation = dataclasses.replace(federation, evaluate=evaluated)
        for _, record in rounds(federation, simulation.start, experiment.rounds):
            if record.round < experiment.rounds:  # the last is always evaluated
                spent["round"].append(record.seconds)
        step, task = alone(simulation)
    middle = {part: statistics.median(values[2:-1] or [0.0]) for part, values in spent.items()}
    flops = gigaflop(name, tests=10_000 if spent["evaluate"][1:] else 0)
    return {
        "workload": name,
        "round_ms": 1e3 * middle["round"],
        "train_ms": 1e3 * middle["train"],
        "evaluate_ms": 1e3 * middle["evaluate"],
        "step_us": 1e6 * step,
        "task_us": 1e6 * task,
        "floor_ms": 1e3 * flops / peak,
    }


def alone(simulation: Any) -> tuple[float, float]:
    """Seconds of an SGD step on one thread, and of what a task takes besides."""
    devices, steps = simulation.devices, 20
    task = Task(0, 0, simulation.start.w.clone(), steps, steps, 0.01, 0.0, 0, {})
    inner: list[float] = []
    sgd = FusedMLP.sgd

    def timed(self: FusedMLP, *given: Any) -> Any:
        started = time.perf_counter()
        found = sgd(self, *given)
        inner.append(time.perf_counter() - started)
        return found

    FusedMLP.sgd = timed
    whole: list[float] = []
    for _ in range(12):
        started = time.perf_counter()
        devices.work(task, {})
        whole.append(time.perf_counter() - started)
    FusedMLP.sgd = sgd
    total = statistics.median(whole[2:])
    within = statistics.median(inner[2:]) if inner else total
    return within / steps, total - within


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description="Where a round's time goes.")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    peak = sgemm_peak()
    print(f"sgemm peak of two processes: {peak:.0f} GFLOPS")
    rows = [row(name, peak) for name in SETTINGS]
    for found in rows:
        print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{v:<9}" for k, v in found.items()))
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(given.out, table_as_csv(rows))


if __name__ == "__main__":
    main()
