"""Where a round's time goes: training, evaluation and the rest, beside what the machine's peak would take.

    .venv/bin/python benchmarks/where.py [--workloads epochs,batches] [--out results/simulators/where.csv]

`floor` is the round's floating-point work (as torch counts it) at the sgemm peak of two processes. `step` is one SGD
step on one thread, in this process; `task` is what an assignment takes beyond its steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from simulators import count_gigaflop, measure_sgemm_peak

from fedlga.core.backend import Backend, Incidents, Scores
from fedlga.core.files import format_csv, write_atomically
from fedlga.core.process import one_thread
from fedlga.core.round import run_rounds
from fedlga.core.types import Assignment, Update
from fedlga.experiments.config import Experiment
from fedlga.experiments.simulation import Simulation, simulate
from fedlga.learning.kernels.mlp import FusedMLP

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

SETTINGS: dict[str, dict[str, Any]] = {
    "epochs": {"steps_per_epoch": 0, "lr": 0.01, "rounds": 6},
    "batches": {"lr": 0.01, "rounds": 60},
    "resnet20": {"dataset": "cifar-10", "model": "resnet20", "lr": 0.01, "rounds": 5, "evaluate_every": 1000},
}


@final
class TimedBackend(Backend):
    """Another backend, with the seconds of every call of `run` and `score`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.train_seconds: list[float] = []
        self.evaluate_seconds: list[float] = []

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:  # noqa: D102
        started = time.perf_counter()
        yield from self._backend.run(assignments)
        self.train_seconds.append(time.perf_counter() - started)

    def score(self, w: Vector, buffers: Vector | None) -> Scores:  # noqa: D102
        started = time.perf_counter()
        scores = self._backend.score(w, buffers)
        self.evaluate_seconds.append(time.perf_counter() - started)
        return scores

    def present(self) -> Sequence[int]:  # noqa: D102
        return self._backend.present()

    def memories(self) -> Iterable[tuple[int, Memory]]:  # noqa: D102
        return self._backend.memories()

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:  # noqa: D102
        self._backend.restore(memories)

    def take_incidents(self) -> Incidents:  # noqa: D102
        return self._backend.take_incidents()

    def close(self) -> None:  # noqa: D102
        self._backend.close()


def measure(name: str, peak: float) -> dict[str, Any]:
    """Return a row of the table: one workload, timed at the aggregator; then one assignment in this process."""
    experiment = Experiment(method="fedavg", fleet="equal").changed(SETTINGS[name])
    round_seconds: list[float] = []
    with simulate(experiment) as simulation:
        backend = TimedBackend(simulation.federation.backend)
        federation = dataclasses.replace(simulation.federation, backend=backend)
        for _, record in run_rounds(federation, simulation.start, experiment.rounds):
            if record.round < experiment.rounds:  # the last is always evaluated
                round_seconds.append(record.seconds)
        step, task = measure_assignment(simulation)
    spent = {"train": backend.train_seconds, "evaluate": backend.evaluate_seconds, "round": round_seconds}
    middle = {part: statistics.median(values[2:-1] or [0.0]) for part, values in spent.items()}
    flops = count_gigaflop(name, tests=10_000 if backend.evaluate_seconds[1:] else 0)
    return {
        "workload": name,
        "round_ms": 1e3 * middle["round"],
        "train_ms": 1e3 * middle["train"],
        "evaluate_ms": 1e3 * middle["evaluate"],
        "step_us": 1e6 * step,
        "task_us": 1e6 * task,
        "floor_ms": 1e3 * flops / peak,
    }


def measure_assignment(simulation: Simulation) -> tuple[float, float]:
    """Return the seconds of an SGD step on one thread, and those that an assignment takes besides its steps."""
    devices, steps = simulation.devices, 20
    assert devices is not None
    assignment = Assignment(0, 0, simulation.start.w.clone(), steps, steps, 0.01, 0.0, 0, {})
    kernel_seconds: list[float] = []
    train = FusedMLP.train

    def timed_train(self: FusedMLP, *arguments: Any) -> Any:
        started = time.perf_counter()
        result = train(self, *arguments)
        kernel_seconds.append(time.perf_counter() - started)
        return result

    FusedMLP.train = timed_train
    seconds: list[float] = []
    with one_thread():
        for _ in range(12):
            started = time.perf_counter()
            devices.perform(assignment, {})
            seconds.append(time.perf_counter() - started)
    FusedMLP.train = train
    total = statistics.median(seconds[2:])
    in_steps = statistics.median(kernel_seconds[2:]) if kernel_seconds else total
    return in_steps / steps, total - in_steps


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description="Where a round's time goes.")
    parser.add_argument("--workloads", default=",".join(SETTINGS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    peak = measure_sgemm_peak()
    print(f"sgemm peak of two processes: {peak:.0f} GFLOPS")
    rows = [measure(name, peak) for name in options.workloads.split(",")]
    for row in rows:
        print("  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{v:<9}" for k, v in row.items()))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, format_csv(rows))


if __name__ == "__main__":
    main()
