"""What every tracker must hold."""

from __future__ import annotations

import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fedlga.contracts.base import NotChecked, expect
from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.core.tracker import TrackedRun, Tracker

SETTINGS = {"method": "fedavg", "lr": 0.1, "audit": False, "speeds": [1.0, 2.0]}
ROUNDS = {1: {"accuracy": 0.2, "seconds": 0.5}, 2: {"seconds": 0.5}, 3: {"accuracy": 0.4, "seconds": 0.5}}
SUMMARY = {"finished": True, "diverged": False, "rounds": 3, "best_accuracy": 0.4, "target": None}


@contextmanager
def open_tracker(name: str) -> Generator[tuple[Tracker, Path]]:
    """Yield a tracker that can be used here, and a folder of a run."""
    tracker: Tracker = create("tracker", name)
    try:
        tracker.check()
    except BadInput as error:
        raise NotChecked(str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        yield tracker, Path(folder)


def follows_a_run(name: str) -> None:
    """It takes a whole run, also rounds in which a metric is not measured, and changes nothing of what it gets."""
    settings, rounds, summary = dict(SETTINGS), {n: dict(values) for n, values in ROUNDS.items()}, dict(SUMMARY)
    with open_tracker(name) as (tracker, folder):
        tracker.start(TrackedRun("contract", folder, settings))
        for number, values in rounds.items():
            tracker.log(number, values)
        tracker.end(summary)
    expect((settings, rounds, summary) == (SETTINGS, ROUNDS, SUMMARY), "it changed what it got")


def follows_a_run_that_is_continued(name: str) -> None:
    """It takes a run that was stopped after its second round, and is continued after its first."""
    with open_tracker(name) as (tracker, folder):
        tracker.start(TrackedRun("contract", folder, SETTINGS))
        for number in (1, 2):
            tracker.log(number, ROUNDS[number])
        tracker.end({**SUMMARY, "finished": False})
        again: Tracker = create("tracker", name)
        again.start(TrackedRun("contract", folder, SETTINGS, round=1))
        for number in (2, 3):
            again.log(number, ROUNDS[number])
        again.end(SUMMARY)


def ends_without_a_round(name: str) -> None:
    """It takes a run that ended before its first round."""
    with open_tracker(name) as (tracker, folder):
        tracker.start(TrackedRun("contract", folder, SETTINGS))
        tracker.end({**SUMMARY, "finished": False, "rounds": 0, "best_accuracy": None})


CHECKS = [follows_a_run, follows_a_run_that_is_continued, ends_without_a_round]
