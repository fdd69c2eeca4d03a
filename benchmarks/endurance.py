"""Long and large: memory, open files and seconds of runs of 20,000 rounds, and of federations of a million devices.

    .venv/bin/python benchmarks/endurance.py [--rounds 20000] [--out results/endurance]

Each run is a real `fedlga run`; its process is looked at while it runs. `first` is what it held after a tenth of the
rounds, `half` after half of them, `last` at the end, when the summary is made from the numbers of all rounds. What is
allocated once shows before `half`. A report of each run is made at the end; its seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.measures import describe_machine

OUT = Path(__file__).parents[1] / "results" / "endurance"
SMALL = [
    *("--preset", "digits", "--set", "devices=10", "--set", "cohort=3", "--set", "steps_per_epoch=1"),
    *("--set", "evaluate_every=50", "--set", "lr=0.01"),
]
MILLION = ["--set", "devices=1000000", "--set", "examples_per_device=20", "--set", "partition=iid"]
LONG = {
    "FedLGA": SMALL,
    "Scaffold, pool of two": [*SMALL, "--method", "scaffold", "--backend", "pool", "--workers", "2"],
    "FedAvg, buffered": [*SMALL, "--method", "fedavg", "--set", "schedule=buffered", "--set", "buffer=2"],
}
LARGE = {
    "a million devices, Scaffold": ["--preset", "digits", "--method", "scaffold", "--set", "cohort=20", *MILLION],
    "a million phones, FedAvg with complete": ["--preset", "phones", *MILLION],
}
LARGE_ROUNDS = 50
PAUSE = 0.5  # seconds between two looks


def watch(name: str, arguments: list[str], rounds: int, folder: Path) -> dict[str, Any]:
    """Run `fedlga run`, and return what its processes held."""
    command = [sys.executable, "-m", "fedlga", "run", *arguments, "--rounds", str(rounds), "--out", str(folder)]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
    held: list[tuple[int, float, int]] = []
    records, done = folder / "rounds.jsonl", 0
    while process.poll() is None:
        time.sleep(PAUSE)
        done = records.read_bytes().count(b"\n") if records.exists() else 0
        try:
            family = find_family(process.pid)
            held.append((done, sum(map(read_megabytes, family)), sum(map(count_files, family))))
        except (OSError, ValueError):  # one of them ended while it was looked at
            continue
    if process.returncode:
        raise SystemExit(f"{name}: fedlga run ended with {process.returncode}")
    spent = time.monotonic() - began
    first, half = (next((row for row in held if row[0] >= rounds * share), held[-1]) for share in (0.1, 0.5))
    last = [row for row in held if row[2] >= first[2] // 2][-1]  # not while it was ending
    lines = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
    row: dict[str, Any] = {"run": name, "rounds": len(lines), "seconds": round(spent)}
    row |= {"first_megabytes": round(first[1]), "half_megabytes": round(half[1]), "last_megabytes": round(last[1])}
    row |= {"first_files": first[2], "last_files": last[2]}
    row["milliseconds_a_round"] = round(1000 * sum(line["seconds"] for line in lines[1:]) / (len(lines) - 1), 1)
    return row


def find_family(process: int) -> list[int]:
    """Return a process and all that it started, as Linux shows them."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8").split()
    return [process, *(member for child in children for member in find_family(int(child)))]


def read_megabytes(process: int) -> float:
    """Return how much main memory a process holds."""
    pages = Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / 1e6


def count_files(process: int) -> int:
    """Return how many files a process has open."""
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


def time_report(folder: Path) -> float:
    """Return the processor's seconds for the report of a run: other work on the machine hardly changes them."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "fedlga", "report", str(folder), "--out", str(folder / "report.html")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1)


def main() -> None:
    """Run everything, and write a row a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20000)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for index, (name, arguments) in enumerate((LONG | LARGE).items()):
            folder = Path(scratch) / str(index)
            rows.append(watch(name, arguments, options.rounds if name in LONG else LARGE_ROUNDS, folder))
            rows[-1] |= {"report_seconds": time_report(folder), "machine": describe_machine()}
            print(rows[-1], flush=True)
            write_atomically(options.out / "endurance.csv", format_csv(rows))


if __name__ == "__main__":
    main()
