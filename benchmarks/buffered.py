"""What a second core gains with each schedule, although a buffer's events are ordered: serial against the pool.

    .venv/bin/python benchmarks/buffered.py [--out results/schedules/pool.csv]      needs the machine to itself

The preset `fleet` with FedAvg, 30 devices at work. The work of a device is five batches, or one pass over its data (120
batches). Each repetition runs every combination, in another order; the table has medians of seconds a deadline of
simulated time, which all schedules have in common.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.process import count_cores
from fedlga.core.round import run_rounds
from fedlga.experiments.measures import describe_machine
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

OUT = Path(__file__).parents[1] / "results" / "schedules" / "pool.csv"
COMMON = {"cohort": 30, "evaluate_every": 10**6, "rounds": 10**6}
SCHEDULES: dict[str, dict[str, Any]] = {
    "rounds, complete": {"stragglers": "complete"},
    "over-selection": {"stragglers": "wait", "schedule": "over-selection"},
    "buffered, buffer 5": {"stragglers": "wait", "schedule": "buffered", "buffer": 5},
    "buffered, buffer 10": {"stragglers": "wait", "schedule": "buffered", "buffer": 10},
    "buffered, buffer 10, complete": {"stragglers": "complete", "schedule": "buffered", "buffer": 10},
}
WORK: dict[str, tuple[float, dict[str, Any]]] = {  # with its deadline: what a fast device needs, in simulated seconds
    "5 batches": (5.0, {}),
    "a pass": (120.0, {"steps_per_epoch": 0, "epochs": 1, "deadline": 120.0}),
}
WARM, LIMITS = 2, {"5 batches": 30, "a pass": 10}  # deadlines: before the clock starts, and until it stops
REPETITIONS = 3


def measure(work: str, schedule: str, backend: str) -> float:
    """Return the seconds that a deadline of simulated time takes."""
    deadline, changes = WORK[work]
    experiment = preset("fleet").changed({**COMMON, **changes, **SCHEDULES[schedule], "backend": backend})
    began, started = 0.0, 0.0
    with simulate(experiment) as simulation:
        for state, _ in run_rounds(simulation.federation, simulation.start, experiment.rounds):
            if not began and state.clock >= WARM * deadline:
                began, started = time.perf_counter(), state.clock
            if state.clock >= LIMITS[work] * deadline:
                return (time.perf_counter() - began) / (state.clock - started) * deadline
    raise AssertionError("it ends at the limit")


def main() -> None:
    """Measure everything, and write a row a schedule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    cells = [(work, schedule, backend) for work in WORK for schedule in SCHEDULES for backend in ("serial", "pool")]
    times: dict[tuple[str, str, str], list[float]] = {cell: [] for cell in cells}
    for repetition in range(REPETITIONS):
        for cell in cells[repetition:] + cells[:repetition]:
            times[cell].append(measure(*cell))
    rows: list[dict[str, Any]] = []
    for work, schedule in [(work, schedule) for work in WORK for schedule in SCHEDULES]:
        serial, pool = times[work, schedule, "serial"], times[work, schedule, "pool"]
        gains = [a / b for a, b in zip(serial, pool, strict=True)]
        row: dict[str, Any] = {"work": work, "schedule": schedule, "cores": count_cores()}
        row |= {
            "serial_ms": round(1000 * statistics.median(serial), 2),
            "pool_ms": round(1000 * statistics.median(pool), 2),
        }
        row |= {"gain": round(statistics.median(gains), 2), "least": round(min(gains), 2), "most": round(max(gains), 2)}
        rows.append({**row, "machine": describe_machine()})
        print(rows[-1], flush=True)
    write_atomically(options.out, format_csv(rows))


if __name__ == "__main__":
    main()
