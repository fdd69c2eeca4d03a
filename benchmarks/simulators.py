"""Seconds a round, ours and other simulators': the same federation, data, partition and cohorts, in one run.

    make bench                                                    # everything: an hour or so
    .venv/bin/python benchmarks/simulators.py --workloads batches --peers ours,bare --repetitions 3

Each peer runs in a virtual environment of its own, which is created on first use under benchmarks/.work. A peer that
cannot be installed or cannot run is listed with the reason. Nothing else should run on the machine. Writes
simulators.csv, simulators.md and simulators.png/.svg into --out.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.measures import describe_machine

HERE = Path(__file__).resolve().parent
WORK = HERE / ".work"
SIMULATORS = ("ours", "ours-general", "bare", "flower", "pfl", "fluke", "fedjax")
NAMES = {"ours": "fedlga", "ours-general": "fedlga, general path", "bare": "bare PyTorch loop"}
NAMES |= {"flower": "Flower on Ray", "pfl": "pfl-research", "fluke": "fluke", "fedjax": "FedJAX"}
# The paper's federation: 50 devices of two classes, 10 a round, 5 units. In the last two, evaluation is kept out of the
# way: the 6.4 GFLOP of one on 10,000 images are seven times those of a batch round's training.
WORKLOADS: dict[str, dict[str, Any]] = {
    "epochs": {"dataset": "fashion-mnist", "model": "mlp", "steps_per_unit": 0, "rounds": 5, "lr": 0.01},
    "batches": {"dataset": "fashion-mnist", "model": "mlp", "steps_per_unit": 1, "rounds": 40, "lr": 0.01},
    "overhead": {
        "dataset": "fashion-mnist",
        "model": "mlp",
        "steps_per_unit": 1,
        "rounds": 60,
        "lr": 0.01,
        "tests": 100,
    },
    "resnet20": {
        "dataset": "cifar-10",
        "model": "resnet20",
        "steps_per_unit": 1,
        "rounds": 5,
        "lr": 0.01,
        "tests": 100,
    },
}
TITLES = {
    "epochs": "epoch rounds, MLP: 6,000 steps, evaluation on 10,000 images",
    "batches": "batch rounds, MLP: 50 steps, evaluation on 10,000 images",
    "overhead": "batch rounds, MLP: 50 steps, evaluation on 100 images",
    "resnet20": "batch rounds, ResNet-20: 50 steps, evaluation on 100 images",
}
WARM = 1  # rounds that do not count: the first holds imports, loading and compiling


def write_job(workload: str) -> Path:
    """Write the data, partition and cohorts of a workload for all peers, as fedlga draws them; return the job file."""
    from fedlga.core.randomness import Stream, generator
    from fedlga.learning.datasets.cache import cache_folder, load
    from fedlga.learning.partitions.base import make_parts
    from fedlga.learning.partitions.classes import ByClasses

    settings = WORKLOADS[workload]
    data = load(settings["dataset"], cache_folder(None), normalise=True)
    labels = data.train_labels.numpy()
    parts = make_parts(ByClasses(classes_per_device=2), labels, data.classes, devices=50, seed=0)
    cohorts = [generator(0, Stream.SAMPLE, r).choice(50, size=10, replace=False) for r in range(settings["rounds"])]
    tests = slice(settings.get("tests"))
    arrays = {
        "train_images": data.train_images.numpy(),
        "train_labels": labels,
        "test_images": data.test_images[tests].numpy(),
        "test_labels": data.test_labels[tests].numpy(),
        "part_rows": np.concatenate(parts),
        "part_ends": np.cumsum([len(part) for part in parts]),
        "cohorts": np.array(cohorts),
    }
    file = WORK / f"{workload}.npz"
    np.savez(file, **arrays)
    job = {"data": str(file), "cohort": 10, "units": 5, "batch_size": 10, "workers": 2, "seed": 0}
    job |= {name: settings[name] for name in ("rounds", "steps_per_unit", "lr", "model")}
    path = WORK / f"{workload}.json"
    path.write_text(json.dumps(job))
    return path


def find_python(peer: str) -> tuple[str | None, str]:
    """Return the python to run a peer with; or None, and why there is none."""
    if peer in ("ours", "ours-general", "bare"):
        return sys.executable, ""
    command = [sys.executable, str(HERE / "peers" / "environments.py"), peer, str(WORK / peer)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    reason = (process.stderr.strip().splitlines() or ["?"])[-1]
    return (process.stdout.strip(), "") if process.returncode == 0 else (None, f"not installed: {reason}")


def run_peer(peer: str, python: str, job: Path) -> dict[str, Any] | str:
    """Run a peer once; return what it wrote, or why it failed."""
    out = WORK / f"{peer}.out.json"
    out.unlink(missing_ok=True)
    script = HERE / "peers" / f"{peer.removesuffix('-general')}.py"
    environment = {**os.environ, "FAST": "0" if peer == "ours-general" else "1"}
    command = [python, str(script), str(job), str(out)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=WORK)  # noqa: S603
    if process.returncode or not out.exists():
        return f"failed: {(process.stderr.strip().splitlines() or ['?'])[-1][:200]}"
    return json.loads(out.read_text())


def measure_all(workloads: list[str], peers: list[str], repetitions: int) -> list[dict[str, Any]]:
    """Run all peers, one repetition after the other; return the rows of the table."""
    rows: list[dict[str, Any]] = []
    pythons = {peer: find_python(peer) for peer in peers}
    for workload in workloads:
        job = write_job(workload)
        runs: dict[str, list[dict[str, Any]]] = {peer: [] for peer in peers}
        notes = {peer: reason for peer, (_, reason) in pythons.items()}
        for repetition in range(repetitions):
            for peer in peers:
                python = pythons[peer][0]
                if python is None or notes[peer] or (workload == "resnet20" and peer not in SIMULATORS[:3]):
                    continue
                outcome = run_peer(peer, python, job)
                if isinstance(outcome, str):
                    notes[peer] = outcome
                else:
                    runs[peer].append(outcome)
                print(f"{workload} {repetition + 1}/{repetitions} {NAMES[peer]}: {_describe(outcome)}", flush=True)
        rows += [_row(workload, peer, runs, notes[peer]) for peer in peers if runs[peer] or notes[peer]]
    return rows


def _median_seconds(run: dict[str, Any]) -> float:
    return statistics.median(r["seconds"] for r in run["rounds"][WARM:])


def _describe(outcome: dict[str, Any] | str) -> str:
    if isinstance(outcome, str):
        return outcome
    return f"{_median_seconds(outcome):.3f} s a round, first done after {outcome['first_round_seconds']:.1f} s"


def _row(workload: str, peer: str, runs: dict[str, list[dict[str, Any]]], note: str) -> dict[str, Any]:
    """Return a row of the table. A ratio compares runs of the same repetition."""
    seconds = [_median_seconds(run) for run in runs[peer]]
    pairs = zip(runs[peer], runs.get("ours", []), strict=False)
    ratios = [_median_seconds(run) / _median_seconds(ours) for run, ours in pairs]
    versions = runs[peer][0]["versions"] if runs[peer] else {}
    return {
        "workload": workload,
        "simulator": NAMES[peer],
        "versions": " ".join(f"{name} {version}" for name, version in versions.items() if name != "python"),
        "repetitions": len(seconds),
        "seconds": statistics.median(seconds) if seconds else None,
        "seconds_min": min(seconds, default=None),
        "seconds_max": max(seconds, default=None),
        "ratio": statistics.median(ratios) if ratios else None,
        "ratio_min": min(ratios, default=None),
        "ratio_max": max(ratios, default=None),
        "first_round_seconds": statistics.median(r["first_round_seconds"] for r in runs[peer]) if runs[peer] else None,
        "accuracy": runs[peer][0]["rounds"][-1]["accuracy"] if runs[peer] else None,
        "note": note,
    }


def write(rows: list[dict[str, Any]], out: Path, command: str) -> None:
    """Write the table as CSV and Markdown, and the figure."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "simulators.csv", format_csv(rows))
    (out / "simulators.md").write_text(format_markdown(rows, command, measure_sgemm_peak()))
    draw(rows, out)


def format_markdown(rows: list[dict[str, Any]], command: str, peak: float) -> str:
    """Return the table as Markdown, a part for each workload, and whether all peers reached the same accuracy."""
    where = f"{describe_machine()}, Python {platform.python_version()}"
    lines = [f"`{command}` on {datetime.date.today().isoformat()}, {where}.", ""]
    lines += [f"Two processes of one thread multiply matrices of 2048 at {peak:.0f} GFLOPS together.", ""]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        lines += [
            f"**{TITLES[workload]}**",
            "",
            "| simulator | seconds a round | times ours | first round after | accuracy |",
        ]
        lines += ["|---|---|---|---|---|"]
        for row in (row for row in rows if row["workload"] == workload):
            if row["seconds"] is None:
                lines.append(f"| {row['simulator']} | {row['note']} | | | |")
                continue
            spread = f"{row['seconds']:.3f} ({row['seconds_min']:.3f} to {row['seconds_max']:.3f})"
            ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})" if row["ratio"] else ""
            first = f"{row['first_round_seconds']:.1f} s"
            lines.append(f"| {row['simulator']} | {spread} | {ratio} | {first} | {row['accuracy']:.1%} |")
        for row in (row for row in rows if row["workload"] == workload and row["seconds"]):
            if row["simulator"] in (NAMES["ours"], NAMES["bare"]):
                reached = count_gigaflop(workload) / row["seconds"]
                lines += ["", f"{row['simulator']}: {reached:.0f} GFLOPS, {reached / peak:.0%} of that peak."]
        lines += ["", compare_accuracies(workload, rows), ""]
    versions = {row["simulator"]: row["versions"] for row in rows if row["versions"]}
    return "\n".join([*lines, *(f"- {simulator}: {named}" for simulator, named in versions.items()), ""])


def compare_accuracies(workload: str, rows: list[dict[str, Any]]) -> str:
    """Return a sentence on whether all end with about the same accuracy: within 5 %, or more with few test images."""
    reached = {r["simulator"]: r["accuracy"] for r in rows if r["workload"] == workload and r["accuracy"] is not None}
    ours = reached.get(NAMES["ours"], statistics.median(reached.values()))
    allowed = 0.05 + 2 * (0.25 / WORKLOADS[workload].get("tests", 10_000)) ** 0.5
    outliers = [f"{name} ({accuracy:.1%})" for name, accuracy in reached.items() if abs(accuracy - ours) > allowed]
    if outliers:
        return f"**Not the same work: {', '.join(outliers)} ended more than {allowed:.0%} away from {ours:.1%}.**"
    return f"All end within {allowed:.0%} of {ours:.1%} accuracy."


def count_gigaflop(workload: str, tests: int | None = None) -> float:
    """Return what a round must compute: its steps, and its evaluation (on `tests` images), counted by torch."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from fedlga.learning.named import make_model

    settings = WORKLOADS[workload]
    shape = (3, 32, 32) if settings["dataset"] == "cifar-10" else (1, 28, 28)
    model = make_model(settings["model"], shape, 10, 0)
    with FlopCounterMode(display=False) as step:
        model.criterion(model.module(torch.zeros(10, *shape)), torch.zeros(10, dtype=torch.int64)).backward()
    with FlopCounterMode(display=False) as test, torch.no_grad():
        model.module(torch.zeros(10, *shape))
    steps = 50 if settings["steps_per_unit"] else 6000
    tests = settings.get("tests", 10_000) if tests is None else tests
    return (steps * step.get_total_flops() + tests / 10 * test.get_total_flops()) / 1e9


def measure_sgemm_peak() -> float:
    """Return the GFLOPS of two processes of one thread each that multiply matrices at once: the best of five."""
    script = (
        "import time, torch; torch.set_num_threads(1); a = torch.randn(2048, 2048); a @ a; best = 0\n"
        "for _ in range(5):\n    t = time.perf_counter(); a @ a; a @ a\n"
        "    best = max(best, 4 * 2048**3 / (time.perf_counter() - t) / 1e9)\n"
        "print(best)"
    )
    both = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]  # noqa: S603
    return sum(float(process.communicate()[0]) for process in both)


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Draw bars of seconds a round, a panel for each workload."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    workloads = list(dict.fromkeys(row["workload"] for row in rows))
    plt.rcParams["svg.hashsalt"] = "fedlga"  # so that the same figure is the same file
    size = (7, 1 + 2.2 * len(workloads))
    figure, axes = plt.subplots(len(workloads), 1, figsize=size, squeeze=False, layout="constrained")
    for axis, workload in zip(axes[:, 0], workloads, strict=True):
        shown = [row for row in rows if row["workload"] == workload and row["seconds"]]
        middle = [row["seconds"] for row in shown]
        ends = [
            [row["seconds"] - row["seconds_min"] for row in shown],
            [row["seconds_max"] - row["seconds"] for row in shown],
        ]
        colours = ["#0072B2" if row["simulator"].startswith("fedlga") else "#999999" for row in shown]
        axis.barh([row["simulator"] for row in shown], middle, xerr=ends, color=colours, capsize=2)
        axis.invert_yaxis()
        for place, row in enumerate(shown):  # bars that are too short to be told apart have their values
            axis.annotate(f" {row['seconds']:.3g}", (row["seconds_max"], place), va="center", fontsize=7)
        axis.set_xlim(0, 1.1 * max(row["seconds_max"] for row in shown))
        axis.set_xlabel("seconds a round")
        axis.set_title(TITLES[workload], fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    most = max(row["repetitions"] or 0 for row in rows)
    data = "MLP: Fashion-MNIST, ResNet-20: CIFAR-10"
    note = f"{data}; bars: the median of {most} repetitions, with the least and the most. Blue: fedlga."
    figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color="#444444")
    for kind in ("png", "svg"):
        figure.savefig(out / f"simulators.{kind}", dpi=150, metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)


def main() -> None:
    """Read the options, run, write."""
    parser = argparse.ArgumentParser(description="Seconds a round, ours and other simulators'.")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--peers", default=",".join(SIMULATORS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "simulators")
    options = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    (WORK / ".gitignore").write_text("*\n")
    rows = measure_all(options.workloads.split(","), options.peers.split(","), options.repetitions)
    write(rows, options.out, " ".join(["python", "benchmarks/simulators.py", *sys.argv[1:]]))
    print((options.out / "simulators.md").read_text())


if __name__ == "__main__":
    main()
