"""One run folder, followed while a run writes into it: only what is new is read."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import is_over, is_percentage, value_of
from fedlga.experiments.progress import estimate_left, is_running
from fedlga.experiments.records import EXPERIMENT, ROUNDS, UNREADABLE, parse_line
from fedlga.report.devices import STATES, classify_work
from fedlga.report.groups import group_key

# The numbers of a round that the page gets, before those of its metrics.
COLUMNS = (
    *("round", "seconds", "simulated_seconds", "work_seconds", "megabytes", "train_loss"),
    *("growth", "scale_low", "scale_median", "scale_high", "asked", "unfinished"),
)
MOST_READ = 8_000_000  # bytes at a time, so that a page shows the beginning of a long run while the rest is read
RECENT_ROUNDS = 100  # in the picture of who was slow
MOST_DEVICES = 200  # in the table of devices: those that were slow most often
MOST_MESSAGES = 100
MOST_LETTERS = 500  # of a message: some texts come from devices
COMMANDS = {"comparison.toml": "compare", "tuning.toml": "tune"}  # files of what a run can be a part of


class FollowedRun:
    """A run folder: its experiment, and the rounds that were read so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._loaded = (folder / EXPERIMENT).stat().st_mtime_ns
        self._load()
        self._commands = list_commands(folder)
        self._forget()

    def _load(self) -> None:
        self.experiment = Experiment.load(self.folder / EXPERIMENT).resolved()
        self.key = group_key(self.experiment)  # the same for runs that differ in nothing but the seed

    def _forget(self) -> None:
        """Begin with the first round again."""
        self.damage = ""
        self.metrics: list[str] = []
        self.count = 0
        self._position = 0
        self._file = -1
        self._last: Record | None = None
        self._seconds, self._simulated = list[float](), list[float]()
        self._work = self._bytes_down = self._bytes_up = 0.0
        self._best: float | None = None
        self._reached: int | None = None
        self._devices: dict[int, _Device] = {}
        self._recent: deque[tuple[int, list[tuple[int, int]]]] = deque(maxlen=RECENT_ROUNDS)
        self._messages: deque[tuple[int, str]] = deque(maxlen=MOST_MESSAGES)

    def read_new(self) -> tuple[bool, list[list[float | None]]]:
        """Return whether to forget the rounds before (a run went back to a checkpoint), and the rows of new ones.

        OSError if the folder is gone.
        """
        changed = (self.folder / EXPERIMENT).stat().st_mtime_ns
        if changed != self._loaded:  # it was continued, perhaps with more rounds
            self._loaded = changed
            self._load()
        file = self.folder / ROUNDS
        if not file.exists():
            return self._start_again() if self.count else (False, [])
        status = file.stat()
        if self.count and (status.st_size < self._position or status.st_ino != self._file):
            return self._start_again()
        self._file = status.st_ino
        if status.st_size == self._position or self.damage:
            return False, []
        with file.open("rb") as lines:
            lines.seek(self._position)
            new = lines.read(MOST_READ)
        whole = new[: new.rfind(b"\n") + 1]  # a line may be half written
        rows: list[list[float | None]] = []
        for line in whole.splitlines(keepends=True):
            try:
                record = parse_line(line)
            except UNREADABLE as error:
                if self.count and not rows:  # the file was cut and is longer again: its lines are at other places
                    return self._start_again()
                self.damage = str(error) if isinstance(error, BadInput) else "not a record"
                break
            if record.round != self.count + 1:
                if self.count and not rows:
                    return self._start_again()
                self.damage = f"round {record.round} follows round {self.count}"
                break
            self._position += len(line)
            rows.append(self._add(record))
        return False, rows

    def _start_again(self) -> tuple[bool, list[list[float | None]]]:
        self._forget()
        _, rows = self.read_new()
        return True, rows

    def _add(self, r: Record) -> list[float | None]:
        """Count a round, and return its row."""
        e = self.experiment
        self.count, self._last = r.round, r
        self._seconds.append(r.seconds)
        self._simulated.append(r.simulated_seconds)
        self._work += r.work_seconds
        self._bytes_down += r.bytes_down
        self._bytes_up += r.bytes_up
        self.metrics += [name for name in r.metrics if name not in self.metrics]
        value = value_of(r, e.target_metric)
        if value is not None:
            better = min if e.better == "lower" else max
            self._best = value if self._best is None else better(self._best, value)
            if self._reached is None and e.reaches(value):
                self._reached = r.round
        states = classify_work(r)
        self._recent.append((r.round, states))
        for device, state in states:
            self._devices.setdefault(device, _Device()).add(state, r.scales.get(device))
        for text in _list_messages(r):
            self._messages.append((r.round, text[:MOST_LETTERS]))
        scales = [scale for scale in r.scales.values() if scale is not None and math.isfinite(scale)]
        low, middle, high = (min(scales), statistics.median(scales), max(scales)) if scales else (None, None, None)
        unfinished = sum(steps < asked for steps, asked in zip(r.steps, r.steps_asked, strict=True))
        own = [r.round, r.seconds, r.simulated_seconds, r.work_seconds, r.megabytes, r.train_loss, r.growth]
        row = [*own, low, middle, high, len(r.devices), unfinished, *(r.metrics.get(name) for name in self.metrics)]
        return [_finite(number) for number in row]

    def find_state(self, locked: set[int] | None) -> str:
        """Return how the run is, in a word."""
        if self.damage:
            return "damaged"
        if self._last is not None and is_over(self.experiment, self._last, sum(self._simulated)):
            return "diverged" if self._last.diverged else "finished"
        if is_running(self.folder, locked):
            return "running"
        return "stopped" if self.count else "not started"

    def describe(self, locked: set[int] | None) -> dict[str, Any]:
        """Return what the page's table says about the run."""
        e, state = self.experiment, self.find_state(locked)
        left = estimate_left(e, self._seconds, self._simulated) if state == "running" else None
        return {
            "folder": str(self.folder),
            "seed": e.seed,
            "state": state,
            "problem": self.damage,
            "round": self.count,
            "rounds": e.rounds,
            "left": left,
            "metric": e.target_metric,
            "metrics": self.metrics,
            "percent": [name for name in self.metrics if is_percentage(name)],
            "lower": e.better == "lower",
            "target": e.target,
            "best": self._best,
            "reached": self._reached,
            "seconds": sum(self._seconds),
            "simulated_seconds": sum(self._simulated),
            "work_seconds": self._work,
            "bytes_down": self._bytes_down,
            "bytes_up": self._bytes_up,
            "unfinished": sum(device.unfinished for device in self._devices.values()),
            "asked": sum(device.asked for device in self._devices.values()),
            **self._commands,
        }

    def describe_devices(self) -> dict[str, Any]:
        """Return who was slow: every device's work in numbers, the last rounds one by one, and what was unusual."""
        often = sorted(self._devices, key=lambda device: (-self._devices[device].unfinished, device))
        return {
            "states": [{"state": state, "name": name, "colour": colour} for state, (name, colour) in STATES.items()],
            "count": len(self._devices),
            "devices": [{"device": device, **self._devices[device].describe()} for device in often[:MOST_DEVICES]],
            "recent": list(self._recent),
            "messages": [{"round": number, "text": text} for number, text in reversed(self._messages)],
        }


class _Device:
    """What one device did in all rounds."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(STATES, 0)
        self.asked = self.unfinished = 0
        self._scales, self._completed = 0.0, 0

    def add(self, state: int, scale: float | None) -> None:
        self.asked += 1
        self.counts[state] += 1
        self.unfinished += state != max(STATES)
        if scale is not None and math.isfinite(scale):
            self._scales, self._completed = self._scales + scale, self._completed + 1

    def describe(self) -> dict[str, Any]:
        scale = self._scales / self._completed if self._completed else None
        return {"asked": self.asked, "counts": list(self.counts.values()), "scale": scale}


def list_commands(folder: Path) -> dict[str, str]:
    """Return the commands that continue a run, or what it is a part of, and that repeat it."""
    where = folder.resolve()
    for parent in list(where.parents)[:4]:
        for name, command in COMMANDS.items():
            if (parent / name).is_file():
                return {
                    "resume": f"fedlga {command} --resume {shlex.quote(str(parent))}",
                    "repeat": f"fedlga run {shlex.quote(str(where / EXPERIMENT))}",
                }
    return {
        "resume": f"fedlga run --resume {shlex.quote(str(where))}",
        "repeat": f"fedlga run {shlex.quote(str(where / EXPERIMENT))}",
    }


def _list_messages(r: Record) -> list[str]:
    """Return what was unusual in a round. Some of it was written by devices: it is text, and nothing else."""
    texts = [r.note] if r.note else []
    texts += [f"device {device} was refused: {reason}" for device, reason in r.refused.items()]
    texts += [f"device {device}: its scale was limited ({reason})" for device, reason in r.clipped.items()]
    return texts


def _finite(number: float | None) -> float | None:
    """Return a number for JSON; None for what is none. Seven digits are enough for a curve."""
    if number is None or not math.isfinite(number):
        return None
    return number if isinstance(number, int) else float(f"{number:.7g}")


def encode(values: Any) -> str:
    """Return JSON without spaces, and without what is no number."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False)


def encode_rows(rows: Sequence[tuple[int, str]]) -> str:
    """Return rows, which are JSON already, as one JSON list of pairs of a run's number and its row."""
    return "[" + ",".join(f"[{number},{row}]" for number, row in rows) + "]"
