"""A deployment tried out: its SuperLink and its nodes, all on this machine, and ended with all they started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..runs import write_atomically
from ..settings import BadInput

CONNECTION = "fleet"  # what Flower's configuration calls the SuperLink
STARTING = 180.0  # seconds that a SuperLink or a node may take to be there
STOPPING = 10.0  # seconds that a process has to end by itself


@dataclass(frozen=True)
class Trial:
    """A deployment, all of it on this machine: on loopback, with TLS and keys as on many."""

    folder: Path
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]], repr=False)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What fleet.toml says."""
        file = self.folder / "fleet.toml"
        try:
            return tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadInput(f"{str(self.folder)!r} holds no fleet: fedlga fleet init makes one") from error

    @property
    def port(self) -> int:
        """Where the SuperLink listens."""
        return int(self.settings["port"])

    def up(self, nodes: int, paces: Sequence[float], say: Callable[[str], None]) -> None:
        """Start the SuperLink and that many nodes; `paces` are the seconds a step takes on each."""
        most = int(self.settings["nodes"])
        if not 1 <= nodes <= most:
            raise BadInput(f"--nodes: got {nodes}; this fleet has keys for 1 to {most}")
        if running := self.running():
            raise BadInput(f"this fleet is up already ({len(running)} processes): fedlga fleet down {self.folder}")
        try:
            self.start_superlink()
            say(f"SuperLink: 127.0.0.1:{self.port}, TLS and node authentication on")
            for number in range(nodes):
                self.register(number)
            say(f"{nodes} node keys registered")
            for number in range(nodes):
                self.start_node(number, paces[number] if number < len(paces) else 0.0)
            self.wait_for_nodes(nodes)
        except BaseException:
            self.down()
            raise
        say(f"{nodes} nodes connected; logs in {self.folder / 'logs'}")

    def start_superlink(self) -> None:
        """And wait until it answers."""
        if _listening(self.port):
            raise BadInput(f"port {self.port} is taken; fleet.toml and superlink.sh name another if you change them")
        process = self._start("superlink", ["sh", "superlink/superlink.sh"], {})
        self._until(lambda: _answers(self.port, self.folder / "ca" / "ca.crt"), process, "superlink")

    def register(self, number: int) -> None:
        """Make a node's public key known to the SuperLink."""
        key = self.folder / "nodes" / str(number) / "key.pub"
        done = self.flwr("supernode", "register", str(key), CONNECTION)
        if done.returncode and "already" not in done.stdout + done.stderr:
            raise BadInput(f"node {number} was not registered ({_last_line(done.stdout + done.stderr)})")

    def start_node(self, number: int, pace: float = 0.0, **more: str) -> subprocess.Popen[bytes]:
        """Start a node; `more` changes what its script takes from the environment."""
        home = self.folder / "nodes" / str(number)
        environment = {"FEDLGA_SUPERLINK": f"127.0.0.1:{self.port}", "FEDLGA_SECONDS_PER_STEP": f"{pace:g}"}
        environment |= {"FLWR_HOME": str(home / "flower"), **more}
        return self._start(f"node-{number}", ["sh", f"nodes/{number}/node.sh"], environment)

    def wait_for_nodes(self, count: int) -> None:
        """Until so many are connected."""
        self._until(lambda: self.online() >= count, None, f"{count} nodes")

    def online(self) -> int:
        """Nodes that are connected."""
        done = self.flwr("supernode", "list", CONNECTION, "--format", "json")
        try:
            found = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            return 0
        return sum(node.get("status") == "online" for node in found.get("nodes", []))

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One of Flower's own commands, on this fleet."""
        command = [str(Path(sys.executable).with_name("flwr")), *words]
        try:
            return subprocess.run(  # noqa: S603
                command,
                cwd=self.folder,
                env=self.environment(),
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BadInput(f"flwr {words[0]}: no answer from the SuperLink in two minutes") from error

    def environment(self, **more: str) -> dict[str, str]:
        """What Flower's processes need: its commands on the path, its files in this folder, nothing told to others."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        quiet |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds; left alone, a task waits one to be started
        return {**os.environ, "PATH": path, "FLWR_HOME": str(self.folder / "flower"), **quiet, **more}

    def _start(self, name: str, command: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                command,
                cwd=self.folder,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it outlives this command, and is ended with all it starts
            )
        self._children.append(process)
        started = {**self._started(), name: {"pid": process.pid, "since": _since(process.pid)}}
        write_atomically(self._file, json.dumps(started, indent=1) + "\n")
        return process

    def _until(self, there: Callable[[], bool], process: subprocess.Popen[bytes] | None, what: str) -> None:
        until = time.monotonic() + STARTING
        while not there():
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > until:
                log = self.folder / "logs" / f"{what}.log"
                why = _last_line(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else "no answer"
                raise BadInput(f"{what}: did not start ({why}); see {self.folder / 'logs'}")
            time.sleep(0.2)

    @property
    def _file(self) -> Path:
        return self.folder / "up.json"

    def _started(self) -> dict[str, dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self._file.read_text(encoding="utf-8"))
        return {}

    def running(self) -> dict[str, int]:
        """The processes that `up` started and that still run: name and number."""
        return {
            name: int(told["pid"])
            for name, told in self._started().items()
            if _since(int(told["pid"])) == told["since"] is not None
        }

    def stop(self, *names: str, kill: bool = False) -> None:
        """End some of them, with all they started; `kill`: without asking first."""
        leaders = [pid for name, pid in self.running().items() if name in names]
        theirs = {pid: since for leader in leaders for pid, since in _family(leader).items()}
        for pid in theirs:
            _signal(pid, signal.SIGKILL if kill else signal.SIGTERM)
        until = time.monotonic() + STOPPING
        while any(_since(pid) == since for pid, since in theirs.items()) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in [pid for pid, since in theirs.items() if _since(pid) == since]:
            _signal(pid, signal.SIGKILL)
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1 if child.pid in theirs else 0)  # whoever started them buries them

    def down(self) -> list[str]:
        """End what `up` started, and nothing else; the names of what was still running."""
        running = list(self.running())
        self.stop(*[name for name in running if name != "superlink"])
        self.stop("superlink")
        self._file.unlink(missing_ok=True)
        return running


def _status(pid: int | str) -> list[str] | None:
    """What the kernel says of a process, from its state on; None: it is not there, or only waits to be buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields


def _since(pid: int) -> int | None:
    """When a process began, in the kernel's ticks: a number that is used again belongs to another process."""
    fields = _status(pid)
    return None if fields is None else int(fields[19])


def _family(leader: int) -> dict[int, int]:
    """A process with all that it started, and those started, and when each began."""
    found = {int(entry.name): _status(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    alive = {pid: fields for pid, fields in found.items() if fields is not None}
    family = {leader} & set(alive)
    family |= {pid for pid, fields in alive.items() if int(fields[3]) == leader}  # of its session, if it is gone itself
    while more := {pid for pid, fields in alive.items() if int(fields[1]) in family} - family:
        family |= more
    return {pid: int(alive[pid][19]) for pid in family}


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _answers(port: int, authority: Path) -> bool:
    """Whether a server is there whose certificate is signed by this authority."""
    context = ssl.create_default_context(cafile=authority)
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=2) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1"),
    ):
        return True
    return False


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
