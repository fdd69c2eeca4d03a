"""What the page of `fedlga watch` asks for: the rounds since it asked last, of all runs below some folders."""

from __future__ import annotations

import functools
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedlga.core.settings import BadInput
from fedlga.experiments.progress import find_locked
from fedlga.experiments.statistics import FEWEST, t_quantile
from fedlga.report.curves import screen_colour
from fedlga.report.groups import check_folder, find_run_folders, name_experiments
from fedlga.report.style import as_pixels, choose_styles
from fedlga.report.watch.follow import COLUMNS, FollowedRun, encode, encode_rows

BETWEEN = 0.4  # seconds between two looks at the folders, however often pages ask
BETWEEN_SEARCHES = 2.0  # seconds between two searches for new run folders
MOST_ROWS = 5000  # in one answer; the page asks again for the others
MOST_SEEDS = 40  # of a group whose interval is shown
FORGET = "null"  # the row that says: what was sent of this run no longer holds


@functools.cache
def list_quantiles() -> list[float | None]:
    """Return half the width of a mean's 95 % interval in standard errors, by the number of seeds; None: too few."""
    return [None if count < FEWEST else round(t_quantile(count), 4) for count in range(MOST_SEEDS + 1)]


class Feed:
    """The runs below some folders, and a log of all their rounds in the order in which they were read.

    A page says how far it has read the log, and gets the rest: no round is sent twice.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            check_folder(folder)
        self.epoch = secrets.token_hex(8)  # a page that another process served begins again
        self._folders = [folder.resolve() for folder in folders]
        self._numbers: dict[Path, int] = {}
        self._runs: dict[int, FollowedRun] = {}
        self._unreadable: dict[Path, str] = {}
        self._log: list[tuple[int, str]] = []
        self._about: dict[int, str] = {}
        self._changed: dict[int, int] = {}  # the revision in which what the table says about a run changed
        self._revision = 0
        self._groups, self._labels = list[str](), list[str]()
        self._looked = self._searched = -1e9
        self._lock = threading.Lock()

    def read_since(self, epoch: str, position: int, revision: int) -> str:
        """Return, as JSON, the rounds after `position` and what changed about runs since `revision`."""
        with self._lock:
            self._look()
            if epoch != self.epoch or position > len(self._log) or revision > self._revision:
                position = revision = 0
            rows = self._log[position : position + MOST_ROWS]
            after = position + len(rows)
            about = [text for number, text in self._about.items() if self._changed[number] > revision]
            head = {
                "epoch": self.epoch,
                "position": after,
                "revision": self._revision,
                "more": after < len(self._log),
                "columns": COLUMNS,
                "numbers": list(self._runs),
                "folders": [str(folder) for folder in self._folders],
                "unreadable": list(self._unreadable.values()),
                "quantiles": list_quantiles() if position == 0 else None,
            }
            return f'{encode(head)[:-1]},"runs":[{",".join(about)}],"rows":{encode_rows(rows)}}}'

    def describe_devices(self, number: int) -> str | None:
        """Return, as JSON, who was slow in a run; None if there is no such run."""
        with self._lock:
            self._look()
            run = self._runs.get(number)
            return None if run is None else encode({"number": number, **run.describe_devices()})

    def count_runs(self) -> int:
        """Return how many runs there are."""
        with self._lock:
            self._look()
            return len(self._runs)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._looked < BETWEEN:
            return
        if now - self._searched >= BETWEEN_SEARCHES:
            self._search()
            self._searched = time.monotonic()
        locked = find_locked()
        for number, run in list(self._runs.items()):
            try:
                forget, rows = run.read_new()
            except (OSError, BadInput):  # its folder is gone, or its experiment is being replaced
                if not run.folder.is_dir():
                    del self._runs[number]
                continue
            if forget:
                self._log.append((number, FORGET))
            self._log += [(number, encode(row)) for row in rows]
        self._describe(locked)
        self._looked = time.monotonic()

    def _search(self) -> None:
        """Look for run folders that were not there before."""
        known = {run.folder for run in self._runs.values()}
        for folder in [path for below in self._folders for path in find_run_folders(below)]:
            if folder in known:
                continue
            try:
                run = FollowedRun(folder)
            except (OSError, BadInput) as error:
                self._unreadable[folder] = f"{folder}: {error}"
                continue
            self._unreadable.pop(folder, None)
            if folder in self._numbers:  # it was there before, and came back
                self._log.append((self._numbers[folder], FORGET))
            number = self._numbers.setdefault(folder, len(self._numbers))
            self._runs[number] = run
            known.add(folder)

    def _describe(self, locked: set[int] | None) -> None:
        """Write down what the table says about each run; runs that differ in nothing but the seed are a group."""
        groups: dict[str, list[int]] = {}
        for number, run in self._runs.items():
            groups.setdefault(run.key, []).append(number)
        first = [self._runs[members[0]].experiment for members in groups.values()]
        if list(groups) != self._groups:
            self._groups, self._labels = list(groups), name_experiments(first)
        styles = choose_styles([(e.method, e.policy) for e in first])
        for group, (members, label, (colour, dashes)) in enumerate(
            zip(groups.values(), self._labels, styles, strict=True)
        ):
            look: dict[str, Any] = {"group": group, "label": label, "colour": screen_colour(colour)}
            for number in members:
                about = self._runs[number].describe(locked)
                text = encode({"number": number, **look, "dash": as_pixels(dashes), **about})
                if text != self._about.get(number):
                    self._revision += 1
                    self._about[number], self._changed[number] = text, self._revision
        for number in set(self._about) - set(self._runs):
            del self._about[number], self._changed[number]
