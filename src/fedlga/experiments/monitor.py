"""`fedlga fleet monitor`: /metrics for Prometheus and /health, read from the run folders and the SuperLink's state.

It is a process of its own, so it is there between runs too, and nothing that goes wrong in it reaches a run. It writes
nothing, and it takes no orders.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any

from fedlga.backends.flower.certificates import find_expiry
from fedlga.backends.flower.fleet_settings import LOOPBACK, FleetSettings
from fedlga.backends.flower.flower_private import read_nodes
from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.records import ROUNDS, UNREADABLE, parse_line

MOST_RUNS = 20  # that are shown, the newest: each is a set of time series
ANSWER_SECONDS = 3.0  # that the SuperLink has to say that it is well
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

HELP = {
    "superlink_up": ("gauge", "1 if the SuperLink answers"),
    "nodes": ("gauge", "registered nodes by state; busy ones are online, and have not replied yet"),
    "certificate_expiry_timestamp_seconds": ("gauge", "until when the SuperLink's certificate is valid"),
    "run_going_on": ("gauge", "1 if a process works in the run's folder"),
    "last_round_timestamp_seconds": ("gauge", "when the last round ended"),
    "rounds_total": ("counter", "rounds that are done"),
    "round_seconds": ("gauge", "how long the last round took"),
    "seconds_total": ("counter", "how long all rounds took"),
    "metric": ("gauge", "the model's metrics at the last evaluation"),
    "round_devices": ("gauge", "devices of the last round, by what became of them"),
    "devices_total": ("counter", "devices of all rounds, by what became of them"),
    "steps_wasted_total": ("counter", "SGD steps whose work was thrown away"),
    "bytes_total": ("counter", "bytes of weights and updates, by direction"),
}


@dataclass
class RunTotals:
    """What the rounds of a run add up to; read as far as they are written."""

    position: int = 0  # in rounds.jsonl, after the last whole line that was read
    rounds: int = 0
    seconds: float = 0.0
    steps_wasted: int = 0
    bytes: dict[str, int] = field(default_factory=lambda: {"down": 0, "up": 0})
    devices: dict[str, int] = field(default_factory=dict[str, int])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    last: Record | None = None

    def read(self, file: Path) -> None:
        """Read the rounds that were written since the last time; from the start, if the file has become shorter."""
        if file.stat().st_size < self.position:  # the run was continued from an earlier checkpoint
            self.__init__()
        with file.open("rb") as lines:
            lines.seek(self.position)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                self.position += len(line)
                with contextlib.suppress(*UNREADABLE):  # read_run names such a line
                    self._add(parse_line(line))

    def _add(self, record: Record) -> None:
        self.rounds, self.last = record.round, record
        self.seconds += record.seconds
        self.steps_wasted += record.steps_wasted
        self.bytes = {"down": self.bytes["down"] + record.bytes_down, "up": self.bytes["up"] + record.bytes_up}
        self.metrics |= {name: value for name, value in record.metrics.items() if value is not None}
        for name, count in count_devices(record).items():
            self.devices[name] = self.devices.get(name, 0) + count


def count_devices(record: Record) -> dict[str, int]:
    """Return how many devices of a round were what."""
    names = ("slow", "absent", "used", "late", "refused", "wasted", "resting")
    return {"selected": len(record.devices), **{name: len(getattr(record, name)) for name in names}}


class Monitor:
    """What is served about a fleet."""

    def __init__(self, folder: Path) -> None:
        """`folder` is a fleet's, or its superlink/ on the machine that aggregates."""
        self.settings = FleetSettings.load(folder)
        self._home = folder / "superlink" if (folder / "superlink").is_dir() else folder
        self._totals: dict[Path, RunTotals] = {}
        self._lock = Lock()  # one scrape at a time

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield all samples: name, labels, value."""
        yield "superlink_up", {}, float(self._superlink_answers())
        for state, count in (read_nodes(self._home / "state" / "superlink.db") or {}).items():
            yield "nodes", {"state": state}, count
        with contextlib.suppress(BadInput):
            yield "certificate_expiry_timestamp_seconds", {}, find_expiry(self._home / "superlink.crt").timestamp()
        for folder, totals in self._read_runs().items():
            run = {"run": folder.name}
            yield "run_going_on", run, float(is_going_on(folder))
            if totals.last is None:
                continue
            with contextlib.suppress(OSError):  # it has just been pruned
                yield "last_round_timestamp_seconds", run, (folder / ROUNDS).stat().st_mtime
            yield "rounds_total", run, totals.rounds
            yield "round_seconds", run, totals.last.seconds
            yield "seconds_total", run, totals.seconds
            yield "steps_wasted_total", run, totals.steps_wasted
            for name, value in totals.metrics.items():
                yield "metric", {**run, "metric": name}, value
            for name, count in count_devices(totals.last).items():
                yield "round_devices", {**run, "state": name}, count
                yield "devices_total", {**run, "state": name}, totals.devices[name]
            for direction, count in totals.bytes.items():
                yield "bytes_total", {**run, "direction": direction}, count

    def render(self) -> str:
        """Return /metrics, in Prometheus' text format."""
        with self._lock:
            samples = list(self.samples())
        lines: list[str] = []
        for name, (kind, meaning) in HELP.items():
            found = [(labels, value) for sample, labels, value in samples if sample == name]
            if found:
                lines += [f"# HELP fedlga_{name} {meaning}", f"# TYPE fedlga_{name} {kind}"]
                lines += [f"fedlga_{name}{_format_labels(labels)} {value!r}" for labels, value in found]
        return "\n".join(lines) + "\n"

    def health(self) -> dict[str, Any]:
        """Return whether the SuperLink answers, and what else says how the fleet is."""
        with self._lock:
            nodes = read_nodes(self._home / "state" / "superlink.db") or {}
            going_on = [folder.name for folder in self._read_runs() if is_going_on(folder)]
            days = None
            with contextlib.suppress(BadInput):
                days = int((find_expiry(self._home / "superlink.crt").timestamp() - time.time()) / 86_400)
            return {
                "healthy": self._superlink_answers() and (days is None or days >= 0),
                "nodes": nodes,
                "runs_going_on": going_on,
                "certificate_days": days,
            }

    def _superlink_answers(self) -> bool:
        try:
            context = ssl.create_default_context(cafile=self._home / "ca.crt")
            url = f"https://{LOOPBACK}:{self.settings.control_port}/health"
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS, context=context):
                return True
        except OSError:
            return False

    def _read_runs(self) -> dict[Path, RunTotals]:
        """Return the newest runs with their totals."""
        files = (self._home / "runs").glob(f"*/{ROUNDS}")
        newest: dict[Path, float] = {}
        for file in files:
            with contextlib.suppress(OSError):  # it has just been pruned
                newest[file] = file.stat().st_mtime
        chosen = sorted(newest, key=lambda file: newest[file], reverse=True)[:MOST_RUNS]
        self._totals = {file: self._totals.get(file, RunTotals()) for file in chosen}
        for file, totals in list(self._totals.items()):
            try:
                totals.read(file)
            except OSError:
                del self._totals[file]
        return {file.parent: totals for file, totals in self._totals.items()}


def is_going_on(folder: Path) -> bool:
    """Return whether a process holds the lock of a run's folder. The lock is not taken: a run could start just then."""
    try:
        inode = folder.stat().st_ino
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    return any("FLOCK" in words and words[5].endswith(f":{inode}") for words in map(str.split, locks))


def _format_labels(labels: Mapping[str, str]) -> str:
    escaped = {
        name: text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, text in labels.items()
    }
    return "{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + "}" if labels else ""


def make_server(monitor: Monitor, listen: str) -> ThreadingHTTPServer:
    """Return a server of /metrics and /health; BadInput if its port is taken."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds that a client may keep a thread waiting

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, CONTENT_TYPE, monitor.render())
            elif self.path == "/health":
                health = monitor.health()
                self._answer(200 if health["healthy"] else 503, "application/json", json.dumps(health) + "\n")
            else:
                self._answer(404, "text/plain", "there is /metrics, and /health\n")

        def _answer(self, status: int, kind: str, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a scrape comes every few seconds."""

    try:
        server = ThreadingHTTPServer((listen, monitor.settings.monitor_port), Handler)
    except OSError as error:
        raise BadInput(
            f"--listen: cannot listen on {listen}:{monitor.settings.monitor_port} ({error.strerror}); "
            "fleet.toml is where to change the port"
        ) from error
    server.daemon_threads = True
    return server


def serve(folder: Path, listen: str, say: Callable[[str], None]) -> None:
    """Serve until the process is stopped."""
    monitor = Monitor(folder)
    with make_server(monitor, listen) as server:
        say(f"http://{listen}:{monitor.settings.monitor_port}/metrics and /health")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
