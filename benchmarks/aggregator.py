"""What completing costs the aggregator: FedLGA's aggregation against FedAvg's of the same updates, in one run.

    .venv/bin/python benchmarks/aggregator.py [--parameters 1000000,10000000] [--updates 10] [--out FILE]

FedAvg gets the updates as they arrive, as from a backend, and holds one at a time. FedLGA holds them, reads each once
for its digest (length and sketch), and averages them block by block. Bandwidth counts the least that must be moved: for
FedAvg three vectors an update (the update, and the sum read and written), for FedLGA two (the update, twice). It is
compared with the bandwidth of a plain copy of vectors of the same size. If the updates do not fit in memory, a few are
used several times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fedlga.core.aggregator import Aggregator
from fedlga.core.files import format_csv, write_atomically
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.keep import Keep
from fedlga.core.process import keep_freed_memory
from fedlga.core.types import Contribution, ServerState, Update
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.fedlga import FedLGA

REPETITIONS = 9
HELD = 4e9  # bytes of different updates


def make_updates(parameters: int, count: int) -> list[Update]:
    """Return updates, half of them complete, the others with one to four of five steps."""
    different = max(2, min(count, int(HELD / (4 * parameters))))
    generator = torch.Generator().manual_seed(0)
    deltas = [torch.randn(parameters, generator=generator) for _ in range(different)]
    steps = [5 if d % 2 else 1 + d % 4 for d in range(count)]
    return [Update(d, deltas[d % different], 100, s, 5, 0.0, {}, 0.1, 0.0) for d, s in enumerate(steps)]


def measure(parameters: int, count: int) -> dict[str, float]:
    """Time the two and a copy, in turns; return medians, and the spread of the ratio."""
    updates = make_updates(parameters, count)
    averaging, completing = Aggregator(FedAvg(), Keep()), Aggregator(FedLGA(), Complete())
    start = ServerState(0, torch.zeros(parameters))
    source, target = updates[0].delta, torch.empty(parameters)

    def arriving() -> Iterator[Contribution]:
        return (Contribution(u) for u in updates)

    # The memory of an earlier round, so that every update is compared with the sketch of the one before.
    later = replace(start, memory=completing.aggregate(start, arriving()).state.memory)
    operations: dict[str, Callable[[], object]] = {
        "fedavg": lambda: averaging.aggregate(start, arriving()),
        "fedlga": lambda: completing.aggregate(later, arriving()),
        "copy": lambda: target.copy_(source),
    }
    times: dict[str, list[float]] = {name: [] for name in operations}
    for repetition in range(REPETITIONS + 1):
        for name, operation in operations.items():
            started = time.perf_counter()
            operation()
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
    options = parser.parse_args()
    rows: list[dict[str, float]] = []
    keep_freed_memory()  # as a simulation does
    torch.set_num_threads(1)
    print(f"{torch.get_num_threads()} threads, medians of {REPETITIONS} alternating repetitions")
    for parameters in map(int, options.parameters.split(",")):
        for count in map(int, options.updates.split(",")):
            rows.append(measure(parameters, count))
            print(
                "{parameters:>11,} x {updates:<4} FedAvg {fedavg_seconds:.4f} s ({fedavg_share_of_copy:.0%} of "
                "a copy's {copy_gb_per_second:.1f} GB/s)  FedLGA {fedlga_seconds:.4f} s ({fedlga_share_of_copy:.0%})  "
                "ratio {ratio:.2f} ({ratio_min:.2f} to {ratio_max:.2f})".format(**rows[-1]),
                flush=True,
            )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, format_csv(rows))


if __name__ == "__main__":
    main()
