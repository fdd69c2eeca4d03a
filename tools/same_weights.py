"""Show that a change leaves results as they were: run small experiments with this tree and with an earlier revision.

    .venv/bin/python tools/same_weights.py --against REV

Six methods with every policy they take, on the preset `digits`, in three variants and on two backends: 126 runs. The
code of REV comes from a temporary git worktree. Two runs are the same if every parameter in model.safetensors has the
same bytes, and every field of their records that both revisions have is the same, except for times. The exit code is 1
if any weights differ, 2 if something could not be run, 130 after an interrupt.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
METHODS = ("fedavg", "fedprox", "fednova", "scaffold", "feddyn", "fedlga")
POLICIES = ("wait", "drop", "keep", "complete")
BACKENDS = ("serial", "pool")
UNEQUAL = {
    "partition": "dirichlet",
    "devices": 8,
    "cohort": 5,
    "rounds": 4,
    "momentum": 0.5,
    "lr_decay": 0.1,
    "averaging": "examples",
    "epochs": 3,
    "rho": 0.8,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "unequal, through autograd": {**UNEQUAL, "clip": 5.0},  # clipping is not in the compiled code
    "unequal, compiled": UNEQUAL,
    "equal": {"rounds": 6, "steps_per_epoch": 2},
}
NOT_COMPARED = {"seconds", "device_seconds", "version"}
STOPPING = 20.0  # seconds that a process has to end after an interrupt

Outcome = dict[str, Any]  # of one run: its name, and the hashes of its weights and its records


def list_experiments() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield method, policy and settings of every run."""
    for method in METHODS:
        for policy in POLICIES:
            if method == "fedlga" and policy != "complete":
                continue
            for variant, changes in VARIANTS.items():
                for backend in BACKENDS:
                    name = f"{method}, {policy}, {variant}, {backend}"
                    yield method, policy, {"name": name, **changes, "backend": backend}


def run_all() -> None:
    """Run every experiment with the fedlga on the path, and print a line of JSON for each.

    It uses only what revisions have in common: `preset`, `Experiment.changed`, `run` and the files of a run.
    """
    from safetensors.torch import load_file

    import fedlga

    print(json.dumps({"package": str(Path(fedlga.__file__).resolve().parent)}), flush=True)
    for method, policy, settings in list_experiments():
        changes = {"method": method, "stragglers": policy, **settings}
        name = changes.pop("name")
        with tempfile.TemporaryDirectory() as folder:
            run = fedlga.run(fedlga.preset("digits").changed(changes), Path(folder) / "run")
            weights = load_file(Path(folder) / "run" / "model.safetensors")
            hashes = {key: hashlib.sha256(value.contiguous().numpy()).hexdigest() for key, value in weights.items()}
            records = [record.as_dict() for record in run.records]
        print(json.dumps({"name": name, "weights": hashes, "records": records}), flush=True)


def collect(process: subprocess.Popen[str], source: Path) -> dict[str, Outcome]:
    """Return what a process that executes `run_all` prints, by the names of the runs."""
    assert process.stdout is not None
    total = sum(1 for _ in list_experiments())
    lines: list[dict[str, Any]] = []
    for line in process.stdout:
        lines.append(json.loads(line))
        if sys.stderr.isatty():
            print(f"\r{source}: {len(lines) - 1} of {total} runs ", end="", file=sys.stderr, flush=True)
    if process.wait():
        raise RuntimeError(f"{source}: the runs ended with exit code {process.returncode}")
    package = Path(lines[0]["package"])
    if package != (source / "fedlga").resolve():
        raise RuntimeError(f"{source}: another fedlga was imported, from {package}")
    return {line["name"]: line for line in lines[1:]}


def run_both(sources: list[Path]) -> list[dict[str, Outcome]]:
    """Run the experiments with the code in each of these folders at the same time; return their outcomes."""
    command = [sys.executable, str(Path(__file__).resolve()), "--run-all"]
    processes: list[subprocess.Popen[str]] = []
    try:
        for source in sources:
            environment = {**os.environ, "PYTHONPATH": str(source)}
            # In a session of its own: a Ctrl-C goes to this process alone, which then stops the others.
            processes.append(
                subprocess.Popen(  # noqa: S603
                    command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
                )
            )
        with ThreadPoolExecutor(len(sources)) as threads:
            try:
                pairs = zip(processes, sources, strict=True)
                outcomes = [threads.submit(collect, process, source) for process, source in pairs]
                for outcome in wait(outcomes, return_when=FIRST_EXCEPTION).done:
                    outcome.result()  # raises what its thread raised
                return [outcome.result() for outcome in outcomes]
            finally:
                stop(processes)  # before the threads are joined: they read until their process ends
    finally:
        stop(processes)


def stop(processes: list[subprocess.Popen[str]]) -> None:
    """Stop those that still run."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in processes:
        try:
            process.wait(timeout=STOPPING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def git(*words: str) -> str:
    """Run git in this tree and return what it prints."""
    command = ["git", "-C", str(ROOT), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


@contextlib.contextmanager
def checked_out(revision: str) -> Generator[Path]:
    """Check a revision out into a temporary worktree; remove it at the end, also after an interrupt."""
    with tempfile.TemporaryDirectory(prefix="same-weights-") as folder:
        tree = Path(folder) / "tree"
        try:
            git("worktree", "add", "--detach", str(tree), revision)
            yield tree
        finally:
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the removal
            if str(tree.resolve()) in git("worktree", "list", "--porcelain"):
                git("worktree", "remove", "--force", "--force", str(tree))  # twice: also if it is not complete yet
            signal.signal(signal.SIGINT, before)


def find_differences(old: Outcome, new: Outcome) -> tuple[list[str], list[str]]:
    """Return the parameters and the fields of records that differ between two outcomes of the same run."""
    names = sorted(set(old["weights"]) | set(new["weights"]))
    weights = [name for name in names if old["weights"].get(name) != new["weights"].get(name)]
    if len(old["records"]) != len(new["records"]):
        return weights, ["the number of rounds"]
    fields: dict[str, None] = {}
    for before, after in zip(old["records"], new["records"], strict=True):
        common = (set(before) & set(after)) - NOT_COMPARED
        fields |= dict.fromkeys(sorted(name for name in common if before[name] != after[name]))
    return weights, list(fields)


def report(old: dict[str, Outcome], new: dict[str, Outcome]) -> bool:
    """Print the table, and what differs; return whether all weights are the same."""
    cells: dict[tuple[str, str], str] = {}
    details: list[str] = []
    total = same = other_weights = 0
    for method, policy, settings in list_experiments():
        name = settings["name"]
        weights, fields = find_differences(old[name], new[name])
        total += 1
        same += not weights and not fields
        other_weights += bool(weights)
        pair = method, policy
        if weights or fields:
            cells[pair] = "differs"
            details.append(f"{name}: weights {', '.join(weights) or 'same'}; records {', '.join(fields) or 'same'}")
        cells.setdefault(pair, "same")
    print(" ".join(f"{word:<9}" for word in ("", *POLICIES)).rstrip())
    for method in METHODS:
        row = [method, *(cells.get((method, policy), "-") for policy in POLICIES)]
        print(" ".join(f"{word:<9}" for word in row).rstrip())
    for line in details:
        print(line)
    ending = f"; the weights of {other_weights} differ" if other_weights else ""
    print(f"{same} of {total} runs have the same weights and records{ending}")
    return not other_weights


def main() -> int:
    """Read the options, run, report."""
    parser = argparse.ArgumentParser(description="Compare weights and records of this tree with those of a revision.")
    parser.add_argument("--against", metavar="REV", help="the git revision to compare with")
    parser.add_argument("--run-all", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run_all:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # also if the shell started all this with it ignored
        run_all()
        return 0
    if not options.against:
        parser.error("--against REV is required")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stop in the same orderly way
    try:
        revision = git("rev-parse", "--verify", "--quiet", f"{options.against}^{{commit}}")
    except subprocess.CalledProcessError:
        parser.error(f"--against: got {options.against!r}; it takes a git revision of this repository")
    try:
        with checked_out(revision) as tree:
            old, new = run_both([tree / "src", ROOT / "src"])
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(error, getattr(error, "stderr", None) or "", file=sys.stderr)
        return 2
    return 0 if report(old, new) else 1


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130  # as shells report it
    sys.exit(code)
