"""What Flower costs: seconds a round of the same work in the pool, in Flower's simulation (Ray) and on SuperNodes.

    .venv/bin/python benchmarks/flower.py [--nodes 2,10] [--hidden 400,...] [--kinds pool,ray,superlink,warm] [--out F]

The local work is minimal, one SGD step a device with all devices in every round, so that the transport is measured:
FedAvg on the digits, with a network of one hidden layer whose width sets the number of parameters. Each point is a
process of its own. SuperLink and SuperNodes run on this machine's loopback, with TLS and keys, as `fedlga fleet up`
starts them: `superlink` with Flower's own nodes, which start a process for each message, `warm` with `fedlga-node`,
whose device process stays up. Fifty of them need more memory and cores than most machines have: see --most-superlink.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.measures import describe_machine

HIDDEN = {4_240: "0.3 million", 133_330: "10 million", 1_333_330: "100 million"}  # 75 parameters a unit
NODE_COMMANDS = {"superlink": "flower-supernode", "warm": "fedlga-node"}
ROUNDS = 5
ON_NODES, IN_MEMORY = 2.1e8, 1.5e9  # the most parameters, of all updates of a round: for a machine with 24 GB
WIDE = """
def {name}(shape, classes):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, {hidden}), nn.ReLU(), nn.Linear({hidden}, classes))
"""


def make_options(hidden: int, nodes: int) -> list[str]:
    """Return the experiment as options of `fedlga run`."""
    changes = {"devices": nodes, "cohort": nodes, "epochs": 1, "steps_per_epoch": 1, "partition": "iid"}
    changes |= {"model": f"wide_{hidden}:net", "evaluate_every": 1000, "fleet": "equal", "patience": 900}
    words = ["--preset", "digits", "--method", "fedavg", "--rounds", str(ROUNDS)]
    return words + [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]


def measure_point(kind: str, hidden: int, nodes: int) -> dict[str, Any]:
    """Run one federation; return its seconds. The first round, and the last, which is evaluated, do not count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"wide_{hidden}.py").write_text(WIDE.format(name="net", hidden=hidden))
        words = make_options(hidden, nodes)
        started = time.perf_counter()
        if kind in NODE_COMMANDS:
            run_on_superlink(folder, words, nodes, NODE_COMMANDS[kind])
        else:
            run_fedlga(folder, "run", *words, "--backend", {"ray": "flower"}.get(kind, kind), "--out", "r")
        lines = (folder / "r" / "rounds.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines][1:-1]
        seconds = [record["seconds"] for record in records]
        slowest = [max(record["device_seconds"].values(), default=0.0) for record in records]
        return {
            "kind": kind,
            "parameters": 75 * hidden + 10,
            "nodes": nodes,
            "seconds": statistics.median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            "slowest_device": statistics.median(slowest),
            "whole": time.perf_counter() - started,
        }


def run_on_superlink(folder: Path, words: list[str], nodes: int, command: str) -> None:
    """Start a fleet whose nodes are run by `command`, run the experiment on it, stop the fleet."""
    from fedlga.backends.flower.deployment import init
    from fedlga.backends.flower.trial import Trial

    init(folder / "fleet", nodes=nodes, port=19_443)
    trial = Trial(folder / "fleet")
    os.environ["FEDLGA_NODE"] = command
    trial.up(nodes, [], lambda line: None)
    try:
        words = [*words, "--set", "fleet=real", "--set", "deadline=600"]  # real devices say how long they worked
        run_fedlga(folder, "run", *words, "--superlink", "fleet", "--out", "r", environment=trial.environment())
    finally:
        trial.down()


def measure_idle(kind: str, nodes: int, seconds: float = 60.0) -> dict[str, Any]:
    """Return what connected nodes without work cost: processor time of the SuperLink, and memory of a node."""
    from fedlga.backends.flower.deployment import init
    from fedlga.backends.flower.trial import Trial

    with tempfile.TemporaryDirectory() as name:
        init(Path(name) / "fleet", nodes=nodes, port=19_443)
        trial = Trial(Path(name) / "fleet")
        os.environ["FEDLGA_NODE"] = NODE_COMMANDS[kind]
        trial.up(nodes, [], lambda line: None)
        try:
            running = trial.running()
            before, started = _cpu(running["superlink"]), time.perf_counter()
            time.sleep(seconds)
            used, lasted = _cpu(running["superlink"]) - before, time.perf_counter() - started
            megabytes = _megabytes(running["node-0"])
        finally:
            trial.down()
    return {"kind": f"idle {kind}", "nodes": nodes, "superlink_cpu_share": used / lasted, "megabytes_a_node": megabytes}


def _processes(leader: int) -> list[int]:
    """Return a process and all that it started."""
    from fedlga.backends.flower.trial import find_family

    return list(find_family(leader))


def _cpu(leader: int) -> float:
    """Return the seconds of processor time of a process and all that it started."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in _processes(leader)]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


def _megabytes(leader: int) -> float:
    """Return the memory of a process and all that it started, shared pages counted once."""
    lines = [line for pid in _processes(leader) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


def run_fedlga(folder: Path, *words: str, environment: dict[str, str] | None = None) -> None:
    """Run the command `fedlga` with these words; RuntimeError if it fails."""
    command = [sys.executable, "-m", "fedlga", *words]
    process = subprocess.run(  # noqa: S603
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(process.stderr[-500:] or process.stdout[-500:])


def main() -> None:
    """Run the points, print a line each, write them."""
    parser = argparse.ArgumentParser(description="What Flower costs a round.")
    parser.add_argument("--nodes", default="2,10,50")
    parser.add_argument("--hidden", default=",".join(map(str, HIDDEN)))
    parser.add_argument("--kinds", default="pool,ray,superlink,warm")
    parser.add_argument("--most-superlink", type=int, default=10, help="the most nodes to start on this machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(describe_machine())
    for kind in [kind for kind in options.kinds.split(",") if kind in NODE_COMMANDS]:
        rows.append(measure_idle(kind, options.most_superlink))
        print(rows[-1], flush=True)
    for hidden in map(int, options.hidden.split(",")):
        for nodes in map(int, options.nodes.split(",")):
            for kind in options.kinds.split(","):
                held = 75 * hidden * nodes  # parameters of a round's updates
                if (kind in NODE_COMMANDS and (nodes > options.most_superlink or held > ON_NODES)) or held > IN_MEMORY:
                    print(kind, hidden, nodes, "left out: too much for one machine", flush=True)
                    continue
                try:
                    row = measure_point(kind, hidden, nodes)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(kind, hidden, nodes, "failed:", str(error)[-300:], flush=True)
                    continue
                rows.append(row)
                words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
                print("  ".join(words), flush=True)
                if options.out:
                    options.out.parent.mkdir(parents=True, exist_ok=True)
                    names = dict.fromkeys(name for row in rows for name in row)
                    write_atomically(options.out, format_csv([{n: row.get(n) for n in names} for row in rows]))


if __name__ == "__main__":
    main()
