"""What completing costs the aggregator: FedLGA's aggregation against FedAvg's of the same updates, in one run.

    .venv/bin/python benchmarks/aggregator.py [--parameters 1000000,10000000] [--updates 10] [--out FILE]

FedAvg gets the updates as they arrive, as from a backend, and holds one at a time. FedLGA holds them, looks at each
once (length and sketch), and averages them block by block. Bandwidth counts what must be moved at least: for FedAvg
three vectors an update (the update, and the sum read and written), for FedLGA two (the update, twice). It is compared
with that of a plain copy of vectors of the same size. More updates than fit in memory are the same few over again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fedlga.methods.fedavg import FedAvg
from fedlga.methods.fedlga import FedLGA
from fedlga.runs import table_as_csv, write_atomically
from fedlga.stragglers import Complete, Keep
from fedlga.tensors import keep_freed_memory
from fedlga.types import Server, Update

REPETITIONS = 9
HELD = 4e9  # bytes of different updates


def updates_of(parameters: int, count: int) -> list[Update]:
    """Half of them complete, the others with one to four of five steps."""
    different = max(2, min(count, int(HELD / (4 * parameters))))
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(parameters, generator=generator) for _ in range(different)]
    steps = [5 if d % 2 else 1 + d % 4 for d in range(count)]
    return [Update(d, deltas[d % different], 100, s, 5, 0.0, {}, 0.1, 0.0) for d, s in enumerate(steps)]


def row(parameters: int, count: int) -> dict[str, float]:
    """Alternate the two and a copy; medians, and the spread of the ratio."""
    updates = updates_of(parameters, count)
    server, policy = Server(0, torch.zeros(parameters)), Complete()
    # A memory as after an earlier round, so that every update finds the sketch of the one before.
    learned = replace(server, memory=policy.answer(server, updates).memory or {})
    source, target = updates[0].delta, torch.empty(parameters)

    def stream() -> Iterator[Update]:
        yield from updates

    works: dict[str, Callable[[], object]] = {
        "fedavg": lambda: FedAvg().aggregate(server, Keep().answer(server, stream()).updates),
        "fedlga": lambda: FedLGA().aggregate(learned, policy.answer(learned, stream()).updates),
        "copy": lambda: target.copy_(source),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for repetition in range(REPETITIONS + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if repetition:  # the first is for warming up
                times[name].append(time.perf_counter() - started)
    middle = {name: statistics.median(seconds) for name, seconds in times.items()}
    ratios = [b / a for a, b in zip(times["fedavg"], times["fedlga"], strict=True)]
    copied = 8 * parameters / middle["copy"] / 1e9
    moved = 4e-9 * parameters * count
    return {
        "parameters": parameters,
        "updates": count,
        "fedavg_seconds": middle["fedavg"],
        "fedlga_seconds": middle["fedlga"],
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "copy_gb_per_second": copied,
        "fedavg_share_of_copy": 3 * moved / middle["fedavg"] / copied,
        "fedlga_share_of_copy": 2 * moved / middle["fedlga"] / copied,
    }


def main() -> None:
    """Print a line for each size, and write them."""
    parser = argparse.ArgumentParser(description="FedLGA's aggregation against FedAvg's.")
    parser.add_argument("--parameters", default="1000000,10000000,100000000")
    parser.add_argument("--updates", default="10,100")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, float]] = []
    keep_freed_memory()  # as a simulation does
    torch.set_num_threads(1)
    print(f"{torch.get_num_threads()} threads, medians of {REPETITIONS} alternating repetitions")
    for parameters in map(int, given.parameters.split(",")):
        for count in map(int, given.updates.split(",")):
            rows.append(row(parameters, count))
            print(
                "{parameters:>11,} x {updates:<4} FedAvg {fedavg_seconds:.4f} s ({fedavg_share_of_copy:.0%} of "
                "a copy's {copy_gb_per_second:.1f} GB/s)  FedLGA {fedlga_seconds:.4f} s ({fedlga_share_of_copy:.0%})  "
                "ratio {ratio:.2f} ({ratio_min:.2f} to {ratio_max:.2f})".format(**rows[-1]),
                flush=True,
            )
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(given.out, table_as_csv(rows))


if __name__ == "__main__":
    main()
