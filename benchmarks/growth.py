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

from fedlga.core.files import format_csv, write_atomically
from fedlga.report.style import METHOD_COLOURS, METHOD_DASHES, METHOD_MARKERS, METHOD_NAMES

DEVICES = [50, 500, 5_000, 50_000, 100_000]
COHORTS = [5, 10, 50, 100, 500]
KINDS = ("fedavg", "scaffold", "fedlga")  # it streams; its devices remember; it holds all of a round's updates
HIDDEN = [16, 128, 1_256, 12_576, 125_784]  # ten thousand to a hundred million parameters
BASE = {"devices": 1000, "cohort": 10, "rounds": 6, "evaluate_every": 1000}
SHARED = {"examples_per_device": 100}  # with partition classes: devices share examples, so there can be many devices


def wide(hidden: int) -> Any:
    """Return a model function for the experiment's field `model`: one hidden layer of this width."""

    def make(shape: tuple[int, int, int], classes: int) -> Any:
        from torch import nn

        inputs = shape[0] * shape[1] * shape[2]
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    return make


for _hidden in HIDDEN:
    globals()[f"wide_{_hidden}"] = wide(_hidden)


def measure_point(changes: dict[str, Any]) -> dict[str, float]:
    """Run one federation in this process; return its seconds, memory and the workers' idle time."""
    from fedlga.backends.pool.workers import Workers
    from fedlga.core.round import run_rounds
    from fedlga.experiments.config import Experiment
    from fedlga.experiments.simulation import simulate

    waited = 0.0  # for answers: a worker is busy while its thread waits for one
    receive = Workers.receive

    def timed_receive(self: Workers, worker: int) -> dict[str, Any]:
        nonlocal waited
        started = time.perf_counter()
        answer = receive(self, worker)
        waited += time.perf_counter() - started
        return answer

    Workers.receive = timed_receive
    peak = Peak()
    partition = {} if "partition" in changes else SHARED
    experiment = Experiment().changed({**BASE, **partition, "method": "fedavg", "fleet": "equal", **changes})
    with simulate(experiment) as simulation:
        busy: list[float] = []
        seconds: list[float] = []
        before = waited
        for _, record in run_rounds(simulation.federation, simulation.start, experiment.rounds - 1):
            busy.append(waited - before)
            seconds.append(record.seconds)
            before = waited
        parameters = len(simulation.start.w)
    idle = 1 - sum(busy[1:]) / (2 * sum(seconds[1:]))
    return {"parameters": parameters, "seconds": statistics.median(seconds[1:]), "gigabytes": peak.stop(), "idle": idle}


class Peak:
    """The most memory that this process and its children held together, measured ten times a second."""

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
        """Stop measuring; return the peak in gigabytes."""
        self._over.set()
        self._thread.join()
        return self._most


def _pss(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("Pss:")), 0.0)


def list_points(methods: list[str], *, quick: bool) -> list[dict[str, Any]]:
    """Return all points, as changes to the base."""
    cut = slice(0, 3) if quick else slice(None)
    points: list[dict[str, Any]] = []
    for method in methods:
        points += [{"method": method, "devices": n} for n in DEVICES[cut]]
    for method in [m for m in methods if m in KINDS]:
        points += [{"method": method, "cohort": k} for k in COHORTS[cut]]
        # Devices that remember a hundred million numbers each are a test of the disk, not of the simulator.
        widths = HIDDEN[:-1] if method == "scaffold" else HIDDEN
        points += [{"method": method, "model": f"growth:wide_{h}"} for h in widths[cut]]
    unequal = {"partition": "dirichlet", "devices": 50, "steps_per_epoch": 0, "lr": 0.01}
    return [*points, {"method": methods[0], **unequal}]


def main() -> None:
    """Run the points one after the other, and write the table and the figure."""
    parser = argparse.ArgumentParser(description="Seconds and memory over devices, cohort and parameters.")
    parser.add_argument("--methods", default="fedavg,fedprox,fednova,scaffold,feddyn,fedlga")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent.parent / "results" / "growth")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure_point(json.loads(options.point))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for changes in list_points(options.methods.split(","), quick=options.quick):
        command = [sys.executable, __file__, "--point", json.dumps(changes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            sys.exit(f"{changes}: {done.stderr.strip().splitlines()[-1]}")
        settings = {"method": "fedavg", "devices": BASE["devices"], "cohort": BASE["cohort"], "partition": "classes"}
        row = {name: changes.get(name, value) for name, value in settings.items()} | json.loads(done.stdout)
        rows.append(row)
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    write_atomically(options.out / "growth.csv", format_csv(rows))
    draw(rows, options.out)


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Draw six panels: seconds and gigabytes, over each of the three."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams["svg.hashsalt"] = "fedlga"  # so that the same figure is the same file
    figure, axes = plt.subplots(
        2, 3, figsize=(10, 5.8), sharey="row", layout="constrained"
    )  # what does not grow is flat
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
                style = {"color": colour, "marker": marker, "linestyle": METHOD_DASHES[method], "ms": 5, "mfc": "none"}
                axes[line, column].loglog(x, y, label=METHOD_NAMES[method], **style)  # open: some coincide
        for line, title in enumerate(("seconds a round", "peak memory (GB)")):
            axes[line, column].set_xlabel({"devices": "devices N", "cohort": "cohort K"}.get(name, name))
            axes[line, column].set_ylabel(title)
            axes[line, column].grid(visible=True, which="major", alpha=0.3)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper left", ncols=6, frameon=False, fontsize=8)
    note = (
        f"Fashion-MNIST, one unit of work = one batch; where they are not varied, N = {base['devices']}, "
        f"K = {base['cohort']}, {base['parameters']:,} parameters. Both axes are logarithmic."
    )
    figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color="#444444")
    for kind in ("png", "svg"):
        figure.savefig(out / f"growth.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)


if __name__ == "__main__":
    main()
