"""Following a run with trackers: how they are named, and that none of them can end a run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.core.tracker import TrackedRun, Tracker, list_numbers
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment
from fedlga.experiments.labels import list_settings
from fedlga.experiments.parsing import parse_setting

Track = str | Tracker | Sequence[str | Tracker]  # 'csv', 'wandb project=mine', 'package.module:Class', or instances


def make_trackers(given: Track | None) -> list[Tracker]:
    """Return trackers that can be used here, of 'NAME [KEY=VALUE ...]'; a list has commas between them."""
    items: list[str | Tracker] = []
    for item in [given] if isinstance(given, str | Tracker) else given or ():
        items += [part.strip() for part in item.split(",")] if isinstance(item, str) else [item]
    trackers = [_parse(item) if isinstance(item, str) else item for item in items]
    for tracker in trackers:
        tracker.check()
    return trackers


def _parse(text: str) -> Tracker:
    name, *words = text.split() or [""]
    return create("tracker", name, dict(parse_setting(word, "--track") for word in words))


class Tracking:
    """The trackers of one run. One that fails is left out from then on, and `say` tells why: the run goes on."""

    def __init__(self, trackers: Sequence[Tracker], say: Callable[[str], None]) -> None:
        self._trackers = [copy.copy(tracker) for tracker in trackers]  # each run has its own
        self._say = say

    def start(self, e: Experiment, folder: Path, round: int) -> None:
        """Begin to follow a run."""
        run = TrackedRun(f"{e.method}-{e.subject}-seed{e.seed}", folder, list_settings(e), round)
        self._call("start", run)

    def log(self, record: Record) -> None:
        """Pass a round on."""
        self._call("log", record.round, list_numbers(record))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Pass the summary on."""
        self._call("end", dict(summary))

    def _call(self, what: str, *arguments: Any) -> None:
        for tracker in list(self._trackers):
            try:
                getattr(tracker, what)(*arguments)
            except Exception as error:
                name = type(tracker).__name__
                if what == "start":
                    raise BadInput(f"--track: {name} cannot start ({type(error).__name__}: {error})") from error
                self._trackers.remove(tracker)
                self._say(f"--track: {name} failed ({type(error).__name__}: {error}); the run goes on without it")
