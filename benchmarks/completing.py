"""What completing costs: FedLGA's aggregation against plain averaging of the same updates, in one run.

    .venv/bin/python benchmarks/completing.py [PARAMETERS] [UPDATES]

Alternates the two, and prints the median, the spread and the ratio.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from fedlga.methods.fedavg import FedAvg
from fedlga.methods.fedlga import FedLGA
from fedlga.stragglers import Complete, Keep
from fedlga.types import Server, Update

REPETITIONS = 9


def main(parameters: int, count: int) -> None:
    """Half of the updates are complete, the others have one to four of five steps."""
    generator = torch.Generator().manual_seed(0)
    steps = [5 if d % 2 else 1 + d % 4 for d in range(count)]
    updates = [
        Update(d, torch.randn(parameters, generator=generator) * s, 100, s, 5, 0.0, {}, 0.1, 0.0)
        for d, s in enumerate(steps)
    ]
    server = Server(0, torch.zeros(parameters))
    policy = Complete()
    # A memory as after an earlier round, so that every update finds the sketch of the one before.
    learned = Server(1, server.w, policy.answer(server, updates).memory or {})

    def plain() -> Server:
        return FedAvg().aggregate(server, Keep().answer(server, updates).updates)

    def completed() -> Server:
        return FedLGA().aggregate(learned, policy.answer(learned, updates).updates)

    times: dict[str, list[float]] = {"averaging": [], "completing and averaging": []}
    for repetition in range(REPETITIONS + 1):
        for name, work in zip(times, (plain, completed), strict=True):
            started = time.perf_counter()
            work()
            if repetition:  # the first is for warming up
                times[name].append(time.perf_counter() - started)
    print(f"{count} updates of {parameters:,} parameters, {torch.get_num_threads()} threads, {REPETITIONS} repetitions")
    for name, seconds in times.items():
        print(f"{name:<26} {statistics.median(seconds):.4f} s ({min(seconds):.4f} to {max(seconds):.4f})")
    ratios = [b / a for a, b in zip(*times.values(), strict=True)]
    print(f"ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    main(*(given + [20_000_000, 10][len(given) :]))
