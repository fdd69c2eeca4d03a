"""How seconds and memory grow with devices (N), cohort (K) and parameters, and how busy the workers are.

    .venv/bin/python benchmarks/growth.py [--methods fedavg,scaffold] [--quick] [--out results/growth]

Each point is a federation in a process of its own: Fashion-MNIST, batch rounds of 5 steps a device, 100 examples a
device, no evaluation. Seconds are the median round after the first; memory is the peak of all its processes together,
shared pages counted once (PSS). The last line is a Dirichlet partition with full epochs; `idle` is the share of the
workers' time in which they waited for work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from fedlga.figures import METHOD_COLOURS, METHOD_MARKERS
from fedlga.runs import table_as_csv, write_atomically

DEVICES = [50, 500, 5_000, 50_000, 100_000]
COHORTS = [5, 10, 50, 100, 500]
KINDS = (
    "fedavg",
    "scaffold",
    "fedlga",
)  # one that streams, one whose devices remember, one that holds a round's updates
HIDDEN = [16, 128, 1_256, 12_576, 125_784]  # ten thousand to a hundred million parameters
BASE = {"devices": 1000, "cohort": 10, "examples_per_device": 100, "rounds": 6, "evaluate_every": 1000}


def wide(hidden: int) -> Any:
    """A network of one hidden layer of this width, as the experiment's field `model` can name it."""

    def make(shape: tuple[int, int, int], classes: int) -> Any:
        from torch import nn

        inputs = shape[0] * shape[1] * shape[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    return make


for _hidden in HIDDEN:
    globals()[f"wide_{_hidden}"] = wide(_hidden)


def point(changes: dict[str, Any]) -> dict[str, float]:
    """Run one federation here, and watch it."""
    from fedlga.backends.pool import Workers
    from fedlga.experiment import Experiment
    from fedlga.federation import rounds
    from fedlga.simulation import simulate

    asked = {"count": 0.0}
    receive = Workers.receive

    def timed(self: Workers, worker: int) -> dict[str, Any]:
        started = time.perf_counter()
        answer = receive(self, worker)
        asked["count"] += time.perf_counter() - started
        return answer

    Workers.receive = timed
    peak = Peak()
    experiment = Experiment().changed({**BASE, "method": "fedavg", "fleet": "equal", **changes})
    with simulate(experiment) as simulation:
        busy: list[float] = []
        seconds: list[float] = []
        before = asked["count"]
        for _, record in rounds(simulation.federation, simulation.start, experiment.rounds - 1):
            busy.append(asked["count"] - before)
            seconds.append(record.seconds)
            before = asked["count"]
        parameters = len(simulation.start.w)
    idle = 1 - sum(busy[1:]) / (2 * sum(seconds[1:]))
    return {"parameters": parameters, "seconds": statistics.median(seconds[1:]), "gigabytes": peak.stop(), "idle": idle}


class Peak:
    """The most memory that this process and its children held together, looked at ten times a second."""

    def __init__(self) -> None:
        self._most, self._over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        import os

        while not self._over.wait(0.1):
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            held = sum(_pss(int(pid)) for pid in [os.getpid(), *children])
            self._most = max(self._most, held)

    def stop(self) -> float:
        """In gigabytes."""
        self._over.set()
        self._thread.join()
        return self._most


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("Pss:")), 0.0)


def points(methods: list[str], *, quick: bool) -> list[dict[str, Any]]:
    """All of them, as changes to the base."""
    cut = slice(0, 3) if quick else slice(None)
    found: list[dict[str, Any]] = []
    for method in methods:
        found += [{"method": method, "devices": n} for n in DEVICES[cut]]
    for method in [m for m in methods if m in KINDS]:
        found += [{"method": method, "cohort": k} for k in COHORTS[cut]]
        # Devices that remember a hundred million numbers each are a test of the disk, not of the simulator.
        widths = HIDDEN[:-1] if method == "scaffold" else HIDDEN
        found += [{"method": method, "model": f"growth:wide_{h}"} for h in widths[cut]]
    unequal = {"partition": "dirichlet", "devices": 50, "examples_per_device": 0, "steps_per_epoch": 0, "lr": 0.01}
    return [*found, {"method": methods[0], **unequal}]


def main() -> None:
    """Run the points one after the other, and write the table and the figure."""
    parser = argparse.ArgumentParser(description="Seconds and memory over devices, cohort and parameters.")
    parser.add_argument("--methods", default="fedavg,fedprox,fednova,scaffold,feddyn,fedlga")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "results" / "growth")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point:
        print(json.dumps(point(json.loads(given.point))))
        return
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for changes in points(given.methods.split(","), quick=given.quick):
        command = [sys.executable, __file__, "--point", json.dumps(changes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            sys.exit(f"{changes}: {done.stderr.strip().splitlines()[-1]}")
        settings = {"method": "fedavg", "devices": BASE["devices"], "cohort": BASE["cohort"], "partition": "classes"}
        row = {name: changes.get(name, value) for name, value in settings.items()} | json.loads(done.stdout)
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    write_atomically(given.out / "growth.csv", table_as_csv(rows))
    draw(rows, given.out)


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Six panels: seconds and gigabytes, over each of the three."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 5.5), sharey="row")  # what does not grow is flat
    base = {"devices": BASE["devices"], "cohort": BASE["cohort"], "parameters": 318_010}
    plain = [row for row in rows if row["partition"] == "classes"]
    for column, name in enumerate(base):
        others = [other for other in base if other != name]
        for method in dict.fromkeys(row["method"] for row in plain):
            fitting = [r for r in plain if r["method"] == method and all(r[o] == base[o] for o in others)]
            fitting.sort(key=lambda r: r[name])
            colour, marker = METHOD_COLOURS[method], METHOD_MARKERS[method]
            for line, measure in enumerate(("seconds", "gigabytes")):
                x, y = [r[name] for r in fitting], [r[measure] for r in fitting]
                axes[line, column].loglog(x, y, color=colour, marker=marker, label=method)
        for line, title in enumerate(("seconds a round", "peak memory (GB)")):
            axes[line, column].set_xlabel({"devices": "devices N", "cohort": "cohort K"}.get(name, name))
            axes[line, column].set_ylabel(title)
            axes[line, column].grid(visible=True, which="major", alpha=0.3)
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    for kind in ("png", "svg"):
        figure.savefig(out / f"growth.{kind}", dpi=150)


if __name__ == "__main__":
    main()
