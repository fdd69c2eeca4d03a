"""Try a deployment on this machine: start its SuperLink and its nodes, and stop them with all that they started."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from fedlga.backends.flower.commands import QUIET, run_flwr, unbox
from fedlga.backends.flower.deployment import node_numbers, write_scripts
from fedlga.backends.flower.fleet_settings import LOOPBACK, FleetSettings
from fedlga.core.files import write_atomically
from fedlga.core.settings import BadInput, Stopped

CONNECTION = "fleet"  # the SuperLink's name in Flower's configuration
STARTING = 180.0  # seconds that a SuperLink or a node may take to start
UNAUTHORIZED = 401
STOPPING = 10.0  # seconds that a process has to end after SIGTERM


@dataclass(frozen=True)
class Trial:
    """A deployment whose processes all run on this machine: on loopback, with TLS and keys as between machines."""

    folder: Path
    _children: list[subprocess.Popen[bytes]] = field(default_factory=list[subprocess.Popen[bytes]], repr=False)

    @cached_property
    def settings(self) -> FleetSettings:
        """The contents of fleet.toml."""
        return FleetSettings.load(self.folder)

    @property
    def port(self) -> int:
        """The port on which the SuperLink listens."""
        return self.settings.control_port

    def up(self, nodes: int, paces: Sequence[float], say: Callable[[str], None], *, proxy: bool = False) -> None:
        """Start the SuperLink and that many nodes; `paces` are the seconds that a step takes on each, at least.

        `proxy`: nginx stands between them, as on separate machines.
        """
        known = node_numbers(self.folder)
        if not 1 <= nodes <= len(known):
            raise BadInput(f"--nodes: got {nodes}; this fleet has keys for 1 to {len(known)}")
        if running := self.running():
            raise BadInput(
                f"this fleet is up already ({len(running)} processes): "
                f"fedlga fleet down {shlex.quote(str(self.folder))}"
            )
        if proxy and shutil.which("nginx", path=self.environment()["PATH"]) is None:
            raise BadInput("--proxy: there is no nginx on this machine; on Debian: apt install nginx-light")
        write_scripts(self.folder)
        numbers = known[:nodes]
        self.check_ports(numbers, proxy=proxy)
        try:
            self.start_superlink()
            say(f"SuperLink: {LOOPBACK}:{self.port}, TLS and node authentication on")
            if proxy:
                self.start_proxy()
                say(f"proxy: {self.settings.listen}:{self.settings.port}, for the fleet API only")
            done, problems = self.register(*numbers)
            say(f"{len(done)} node keys registered" + (f", {nodes - len(done)} known" if len(done) < nodes else ""))
            for number, pace in itertools.zip_longest(numbers, paces[:nodes], fillvalue=0.0):
                self.start_node(int(number), pace, proxy=proxy)
            self.wait_for_nodes(nodes, problems)
        except BaseException:
            self.down()
            raise
        say(f"{nodes} nodes connected; logs in {self.folder / 'logs'}")

    def check_ports(self, numbers: Sequence[int], *, proxy: bool = False) -> None:
        """Raise BadInput if a port that is going to be used is taken: before anything is started."""
        fleet = self.settings
        wanted = {"control_port": fleet.control_port, **({"port": fleet.port} if proxy else {})}
        wanted |= {f"runtime_port of device {number}": fleet.runtime_port + number for number in numbers}
        taken = [f"{port} ({name})" for name, port in wanted.items() if not _is_free(port)]
        if taken:
            verb = "is" if len(taken) == 1 else "are"
            raise BadInput(f"port {', '.join(taken)} {verb} taken; {self.folder / 'fleet.toml'} is where to change it")

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers; BadInput if it would do what anyone asks."""
        if not _is_free(self.port):
            raise BadInput(f"port {self.port} is taken; {self.folder / 'fleet.toml'} is where to change it")
        process = self._start("superlink", ["sh", "superlink/superlink.sh"], {})
        self._wait_until(lambda: self.asks_for_secret() is not None, process, "superlink")
        if not self.asks_for_secret():
            raise BadInput(
                "the SuperLink takes commands from everyone: it was stopped; is fedlga-superlink on the path?"
            )

    def asks_for_secret(self) -> bool | None:
        """Return whether the control API refuses whoever does not show the secret; None if it does not answer."""
        request = urllib.request.Request(
            f"https://{LOOPBACK}:{self.port}/v1/control/list-runs",
            data=b"",
            headers={"Content-Type": "application/x-protobuf"},
            method="POST",
        )
        try:
            context = ssl.create_default_context(cafile=self.folder / "ca" / "ca.crt")
            with urllib.request.urlopen(request, timeout=10, context=context):  # noqa: S310
                return False
        except urllib.error.HTTPError as error:
            with error:
                return error.code == UNAUTHORIZED
        except OSError:
            return None

    def start_proxy(self) -> None:
        """Start nginx with the fleet's own configuration, and wait until it listens."""
        home = self.folder / "superlink"
        (home / "proxy-temp").mkdir(exist_ok=True)
        globally = "daemon off;" + (" user root;" if os.geteuid() == 0 else "")  # or it could not enter this folder
        words = ["nginx", "-p", str(home), "-c", str(home / "proxy.conf"), "-g", globally]
        process = self._start("proxy", words, {})
        self._wait_until(lambda: not _is_free(self.settings.port), process, "proxy")

    def register(self, *numbers: int) -> tuple[list[int], list[str]]:
        """Let nodes' keys in, if the SuperLink does not know them; return who was, and what went wrong.

        That is no error yet: whether the node can connect shows.
        """
        from fedlga.backends.flower.control import open_control
        from fedlga.backends.flower.registry import register_missing

        with open_control(self.folder) as control:
            return register_missing(self.folder, control, list(numbers))

    def start_node(
        self, number: int, pace: float = 0.0, *, proxy: bool = False, **more: str
    ) -> subprocess.Popen[bytes]:
        """Start a node; `more` are environment variables for its script."""
        home = self.folder / "nodes" / str(number)
        port = self.settings.port if proxy else self.port
        environment = {"FEDLGA_SUPERLINK": f"{LOOPBACK}:{port}", "FEDLGA_SECONDS_PER_STEP": f"{pace:g}"}
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
        from fedlga.backends.flower.control import open_control

        try:
            with open_control(self.folder) as control:
                return sum(node.status == "online" for node in control.list_nodes())
        except (BadInput, Stopped):
            return 0

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of Flower's own commands on this fleet."""
        return run_flwr(*words, environment=self.environment(), folder=self.folder, seconds=120)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of Flower's processes: its commands on the path, its files here, no telemetry."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin"])
        quick = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # seconds; by default a task waits up to one second
        return {**os.environ, "PATH": path, "FLWR_HOME": str(self.folder / "flower"), **QUIET, **quick, **more}

    def _start(self, name: str, command: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        log = self.folder / "logs" / f"{name}.log"
        log.parent.mkdir(exist_ok=True)
        log.touch()
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "fedlga.backends.flower.log_file", str(log), name, *command],
            cwd=self.folder,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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
                why = _last_lines(log) if log.exists() else "no answer"
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


def _is_free(port: int) -> bool:
    """Return whether a server on this machine could listen on the port."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return False
    try:
        with socket.create_server((LOOPBACK, port)):
            return True
    except OSError:
        return False


def _last_lines(log: Path) -> str:
    """Return the end of a log in one line."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if unbox(line)]
    return unbox("\n".join(lines[-3:])) or "no output"
