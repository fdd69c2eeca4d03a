"""A real SuperLink and real SuperNodes on loopback, for tests: start them, run on them, wait for what they do."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fedlga.backends.flower.deployment import init
from fedlga.backends.flower.trial import Trial, find_family

LONGEST = 600  # seconds until a test gives up: no test waits this long unless something is broken
BIN = Path(sys.executable).parent
EXAMPLE_APP = Path(__file__).parents[2] / "examples" / "flower-app"
QUICK_FLOWER = Path(__file__).with_name("quick_flower")

PORTS = 12  # that a fleet of a test has
_first_ports = iter(
    range(10_000 + os.getpid() % 300 * 64, 32_000, PORTS)
)  # each worker of pytest begins somewhere else


def free_ports() -> int:
    """Return the first of some ports that nothing uses. They are returned once, because some are taken later."""
    for first in _first_ports:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + PORTS):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no free ports")


def quicken(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which Flower's processes take less time: see quick_flower/sitecustomize.py."""
    path = os.pathsep.join(filter(None, [str(QUICK_FLOWER), environment.get("PYTHONPATH")]))
    quick = {"PYTHONPATH": path, "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.4"}
    return {**environment, **quick}


class QuickTrial(Trial):
    """A trial whose processes poll more often than Flower's do by themselves."""

    def environment(self, **more: str) -> dict[str, str]:
        return {**quicken(super().environment()), **more}


def make_trial(folder: Path, nodes: int, port: int | None = None) -> QuickTrial:
    """Write a deployment into a new folder; nothing is started."""
    init(folder, nodes=nodes, port=port or free_ports())
    (folder / "logs").mkdir()
    return QuickTrial(folder)


@contextlib.contextmanager
def run_trial(folder: Path, *, keys: int, nodes: int) -> Iterator[QuickTrial]:
    """Start a SuperLink and some nodes, with TLS and keys; stop them at the end, with all they started."""
    trial = make_trial(folder, keys)
    said: list[str] = []
    trial.up(nodes, [], said.append)
    assert said[0].endswith("TLS and node authentication on")
    try:
        yield trial
    finally:
        trial.down()
        assert trial.running() == {}


def read_logs(trial: Trial) -> str:
    """Return the ends of all logs, for the message of a failed test."""
    return "".join(f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in (trial.folder / "logs").glob("*.log"))


def wait_until(condition: Callable[[], object], trial: Trial) -> None:
    """Wait for something to happen, however long it takes."""
    until = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < until, read_logs(trial)
        time.sleep(0.1)


def read_rounds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds so far of a run that may still be going on."""
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def start_app(trial: Trial, app: Path, out: Path, **config: Any) -> subprocess.Popen[bytes]:
    """Start `flwr run` on an app; return its process, which ends with the run."""
    values = " ".join(f"{name}={json.dumps(value)}" for name, value in {"out": str(out), **config}.items())
    command = [str(BIN / "flwr"), "run", str(app), "fleet", "--stream", "--run-config", values]
    with log_of(trial, out).open("wb") as log:
        return subprocess.Popen(command, env=trial.environment(), stdout=log, stderr=subprocess.STDOUT)


def log_of(trial: Trial, out: Path) -> Path:
    """Return the file with what `flwr run` printed."""
    return trial.folder / "logs" / f"{out.name}.log"


def stop_run(trial: Trial, out: Path) -> None:
    """Stop a run that `start_app` started."""
    run = log_of(trial, out).read_text().partition("Successfully started run ")[2].split()[0]
    trial.flwr("stop", run, "fleet")


def find_processes(trial: Trial, name: str, command: str) -> list[int]:
    """Return the processes of a node, or of the SuperLink, that run a command of Flower's."""
    return [pid for pid in find_family(trial.running()[name]) if command in read_names(pid)]


def read_names(pid: int) -> set[str]:
    """Return what a process is called: its name, and those of its program and script or module."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:3]
        return {Path(f"/proc/{pid}/comm").read_text().strip(), *(Path(word).name for word in words)}
    return set()


def listens(port: int) -> bool:
    """Return whether something listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
