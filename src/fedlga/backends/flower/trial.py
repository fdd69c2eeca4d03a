"""Try a deployment on this machine: start its SuperLink and its nodes, and stop them with all that they started."""

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from fedlga.core.files import write_atomically
from fedlga.core.settings import BadInput, read_toml

LIMITS = {"port": 65_535, "nodes": 10_000}  # the most that fleet.toml may say
CONNECTION = "fleet"  # the SuperLink's name in Flower's configuration
STARTING = 180.0  # seconds that a SuperLink or a node may take to start
STOPPING = 10.0  # seconds that a process has to end after SIGTERM


@dataclass(frozen=True)
class Trial:
    """A deployment whose processes all run on this machine: on loopback, with TLS and keys as between machines."""

    folder: Path
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]], repr=False)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The contents of fleet.toml."""
        file = self.folder / "fleet.toml"
        try:
            values = read_toml(file.read_text(encoding="utf-8"), str(file))
        except (OSError, ValueError) as error:
            raise BadInput(f"{str(self.folder)!r} holds no fleet: fedlga fleet init makes one") from error
        if not all(type(values.get(name)) is int and 0 < values[name] <= most for name, most in LIMITS.items()):
            raise BadInput(f"{str(file)!r}: it takes port and nodes, both whole numbers")
        return values

    @property
    def port(self) -> int:
        """The port on which the SuperLink listens."""
        return int(self.settings["port"])

    def up(self, nodes: int, paces: Sequence[float], say: Callable[[str], None]) -> None:
        """Start the SuperLink and that many nodes; `paces` are the seconds that a step takes on each, at least."""
        most = int(self.settings["nodes"])
        if not 1 <= nodes <= most:
            raise BadInput(f"--nodes: got {nodes}; this fleet has keys for 1 to {most}")
        if running := self.running():
            raise BadInput(f"this fleet is up already ({len(running)} processes): fedlga fleet down {self.folder}")
        try:
            self.start_superlink()
            say(f"SuperLink: 127.0.0.1:{self.port}, TLS and node authentication on")
            problems = [problem for number in range(nodes) if (problem := self.register(number)) is not None]
            say(f"{nodes} node keys registered" if not problems else f"{nodes - len(problems)} node keys registered")
            for number in range(nodes):
                self.start_node(number, paces[number] if number < len(paces) else 0.0)
            self.wait_for_nodes(nodes, problems)
        except BaseException:
            self.down()
            raise
        say(f"{nodes} nodes connected; logs in {self.folder / 'logs'}")

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        if _listening(self.port):
            raise BadInput(f"port {self.port} is taken; fleet.toml and superlink.sh name another if you change them")
        process = self._start("superlink", ["sh", "superlink/superlink.sh"], {})
        self._wait_until(lambda: _answers(self.port, self.folder / "ca" / "ca.crt"), process, "superlink")

    def register(self, number: int) -> str | None:
        """Register a node's public key at the SuperLink; return what Flower said if it was not registered now.

        That is no error yet: the SuperLink may know the key from an earlier start. Whether the node can connect shows.
        """
        key = self.folder / "nodes" / str(number) / "key.pub"
        process = self.flwr("supernode", "register", str(key), CONNECTION)
        return f"node {number}: {_last_line(process.stdout + process.stderr)}" if process.returncode else None

    def start_node(self, number: int, pace: float = 0.0, **more: str) -> subprocess.Popen[bytes]:
        """Start a node; `more` are environment variables for its script."""
        home = self.folder / "nodes" / str(number)
        environment = {"FEDLGA_SUPERLINK": f"127.0.0.1:{self.port}", "FEDLGA_SECONDS_PER_STEP": f"{pace:g}"}
        environment |= {"FLWR_HOME": str(home / "flower"), **more}
        return self._start(f"node-{number}", ["sh", f"nodes/{number}/node.sh"], environment)

    def wait_for_nodes(self, count: int, problems: Sequence[str] = ()) -> None:
        """Wait until so many nodes are connected; if they do not, name what went wrong before."""
        try:
            self._wait_until(lambda: self.online() >= count, None, f"{count} nodes")
        except BadInput as error:
            raise BadInput(f"{error}; {problems[0]}" if problems else str(error)) from error

    def online(self) -> int:
        """Return the number of nodes that are connected."""
        output = self.flwr("supernode", "list", CONNECTION, "--format", "json").stdout
        try:
            listing = json.loads(output[output.index("{") :])
        except ValueError:
            return 0
        return sum(node.get("status") == "online" for node in listing.get("nodes", []))

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of Flower's own commands on this fleet."""
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
        """Return the environment of Flower's processes: its commands on the path, its files here, no telemetry."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        quiet |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds; by default a task waits up to one second
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
                start_new_session=True,  # it outlives this command, and is stopped with all that it starts
            )
        self._children.append(process)
        started = {**self._read_started(), name: {"pid": process.pid, "since": _start_time(process.pid)}}
        write_atomically(self._file, json.dumps(started, indent=1) + "\n")
        return process

    def _wait_until(self, ready: Callable[[], bool], process: subprocess.Popen[bytes] | None, what: str) -> None:
        """Wait until `ready`; BadInput if `process` ends before, or it takes too long."""
        until = time.monotonic() + STARTING
        while not ready():
            ended = process is not None and process.poll() is not None
            if ended or time.monotonic() > until:
                log = self.folder / "logs" / f"{what}.log"
                why = _last_line(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else "no answer"
                raise BadInput(f"{what}: did not start ({why}); see {self.folder / 'logs'}")
            time.sleep(0.2)

    @property
    def _file(self) -> Path:
        return self.folder / "up.json"

    def _read_started(self) -> dict[str, dict[str, Any]]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            values: Any = json.loads(self._file.read_text(encoding="utf-8"))
            entries = cast("dict[str, Any]", values) if isinstance(values, dict) else {}
            return {name: entry for name, entry in entries.items() if _is_entry(entry)}
        return {}

    def running(self) -> dict[str, int]:
        """Return the processes that `up` started and that still run: name and process id."""
        return {
            name: int(entry["pid"])
            for name, entry in self._read_started().items()
            if _start_time(int(entry["pid"])) == entry["since"] is not None
        }

    def stop(self, *names: str, kill: bool = False) -> None:
        """Stop some of them, with all that they started; `kill`: with SIGKILL at once."""
        leaders = [pid for name, pid in self.running().items() if name in names]
        started = {pid: since for leader in leaders for pid, since in find_family(leader).items()}
        for pid in started:
            _signal(pid, signal.SIGKILL if kill else signal.SIGTERM)
        until = time.monotonic() + STOPPING
        while any(_start_time(pid) == since for pid, since in started.items()) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in [pid for pid, since in started.items() if _start_time(pid) == since]:
            _signal(pid, signal.SIGKILL)
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=1 if child.pid in started else 0)  # so that no zombie is left

    def down(self) -> list[str]:
        """Stop what `up` started, and nothing else; return the names of what was still running."""
        running = list(self.running())
        self.stop(*[name for name in running if name != "superlink"])
        self.stop("superlink")
        self._file.unlink(missing_ok=True)
        return running


def _is_entry(entry: Any) -> bool:
    """Return whether an entry of up.json is one that `up` wrote."""
    return isinstance(entry, dict) and all(type(entry.get(name)) is int for name in ("pid", "since"))  # pyright: ignore


def _status(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None if there is no such process, or it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields


def _start_time(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks: it tells a process from a later one with the same id."""
    fields = _status(pid)
    return None if fields is None else int(fields[19])


def find_family(leader: int) -> dict[int, int]:
    """Return a process and all its descendants, with the start time of each."""
    processes = {int(entry.name): _status(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()}
    alive = {pid: fields for pid, fields in processes.items() if fields is not None}
    family = {leader} & set(alive)
    family |= {pid for pid, fields in alive.items() if int(fields[3]) == leader}  # its session: it may be gone itself
    while more := {pid for pid, fields in alive.items() if int(fields[1]) in family} - family:
        family |= more
    return {pid: int(alive[pid][19]) for pid in family}


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _listening(port: int) -> bool:
    """Return whether some server accepts connections on the port."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _answers(port: int, authority: Path) -> bool:
    """Return whether a server answers whose certificate is signed by this authority."""
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
    return lines[-1] if lines else "no output"
