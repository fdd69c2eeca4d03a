"""What Flower costs: seconds a round of the same work in the pool, in Flower's simulation (Ray) and on SuperNodes.

    .venv/bin/python benchmarks/flower.py [--nodes 2,10,50] [--hidden 400,...] [--kinds pool,ray,superlink] [--out FILE]

The work is next to nothing, one SGD step a device with all devices in every round, so that what is measured is the
way there and back: FedAvg on the digits, a network of one hidden layer whose width makes the parameters. Each point is
a process of its own. SuperLink and SuperNodes run on this machine's loopback, with TLS and keys, as `fedlga fleet up`
starts them: fifty of them need more memory and cores than most machines have, and are left out unless asked for.
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

from fedlga.runs import machine, table_as_csv, write_atomically

HIDDEN = {4_240: "0.3 million", 133_330: "10 million", 1_333_330: "100 million"}  # 75 parameters a unit
ROUNDS = 5
ON_NODES, IN_MEMORY = 2.1e8, 1.5e9  # parameters, of all updates of a round, that are tried: 24 GB is all there is
WIDE = """
def {name}(shape, classes):
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, {hidden}), nn.ReLU(), nn.Linear({hidden}, classes))
"""


def settings(hidden: int, nodes: int) -> list[str]:
    """The experiment, as options of `fedlga run`."""
    changes = {"devices": nodes, "cohort": nodes, "epochs": 1, "steps_per_epoch": 1, "partition": "iid"}
    changes |= {"model": f"wide_{hidden}:net", "evaluate_every": 1000, "fleet": "equal", "patience": 900}
    words = ["--preset", "digits", "--method", "fedavg", "--rounds", str(ROUNDS)]
    return words + [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]


def point(kind: str, hidden: int, nodes: int) -> dict[str, Any]:
    """One federation; the first round and the last, which is evaluated, do not count."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / f"wide_{hidden}.py").write_text(WIDE.format(name="net", hidden=hidden))
        words = settings(hidden, nodes)
        started = time.perf_counter()
        if kind == "superlink":
            on_superlink(folder, words, nodes)
        else:
            fedlga(folder, "run", *words, "--backend", {"ray": "flower"}.get(kind, kind), "--out", "r")
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


def on_superlink(folder: Path, words: list[str], nodes: int) -> None:
    """Start a fleet, run on it, end it."""
    from fedlga.flower.deployment import init
    from fedlga.flower.trial import Trial

    init(folder / "fleet", nodes=nodes, port=19_443)
    trial = Trial(folder / "fleet")
    trial.up(nodes, [], lambda line: None)
    try:
        words = [*words, "--set", "fleet=real", "--set", "deadline=600"]  # real devices say how long they worked
        fedlga(folder, "run", *words, "--superlink", "fleet", "--out", "r", environment=trial.environment())
    finally:
        trial.down()


def idle(nodes: int, seconds: float = 60.0) -> dict[str, Any]:
    """What connected nodes cost a SuperLink that has nothing for them: its processor's time, and memory a node."""
    from fedlga.flower.deployment import init
    from fedlga.flower.trial import Trial

    with tempfile.TemporaryDirectory() as name:
        init(Path(name) / "fleet", nodes=nodes, port=19_443)
        trial = Trial(Path(name) / "fleet")
        trial.up(nodes, [], lambda line: None)
        try:
            running = trial.running()
            before, started = _cpu(running["superlink"]), time.perf_counter()
            time.sleep(seconds)
            used, lasted = _cpu(running["superlink"]) - before, time.perf_counter() - started
            node = _megabytes(running["node-0"])
        finally:
            trial.down()
    return {"kind": "idle", "nodes": nodes, "superlink_cpu_share": used / lasted, "megabytes_a_node": node}


def _tree(leader: int) -> list[int]:
    from fedlga.flower.trial import _family

    return list(_family(leader))


def _cpu(leader: int) -> float:
    """Seconds of processor time of a process and what it started."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in _tree(leader)]
    return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")


def _megabytes(leader: int) -> float:
    lines = [line for pid in _tree(leader) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


def fedlga(folder: Path, *words: str, environment: dict[str, str] | None = None) -> None:
    """The command itself."""
    command = [sys.executable, "-m", "fedlga.cli", *words]
    done = subprocess.run(  # noqa: S603
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-500:] or done.stdout[-500:])


def main() -> None:
    """Run the points, print a line each, write them."""
    parser = argparse.ArgumentParser(description="What Flower costs a round.")
    parser.add_argument("--nodes", default="2,10,50")
    parser.add_argument("--hidden", default=",".join(map(str, HIDDEN)))
    parser.add_argument("--kinds", default="pool,ray,superlink")
    parser.add_argument("--most-superlink", type=int, default=10, help="Nodes that are started here at most.")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(machine())
    if "superlink" in given.kinds and given.most_superlink > 2:  # noqa: PLR2004
        rows.append(idle(given.most_superlink))
        print(rows[-1], flush=True)
    for hidden in map(int, given.hidden.split(",")):
        for nodes in map(int, given.nodes.split(",")):
            for kind in given.kinds.split(","):
                held = 75 * hidden * nodes  # parameters of a round's updates
                if (kind == "superlink" and (nodes > given.most_superlink or held > ON_NODES)) or held > IN_MEMORY:
                    print(kind, hidden, nodes, "left out: too much for one machine", flush=True)
                    continue
                try:
                    row = point(kind, hidden, nodes)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    print(kind, hidden, nodes, "failed:", str(error)[-300:], flush=True)
                    continue
                rows.append(row)
                words = (f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
                print("  ".join(words), flush=True)
                if given.out:
                    given.out.parent.mkdir(parents=True, exist_ok=True)
                    names = dict.fromkeys(name for row in rows for name in row)
                    write_atomically(given.out, table_as_csv([{n: row.get(n) for n in names} for row in rows]))


if __name__ == "__main__":
    main()
