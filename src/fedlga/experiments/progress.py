"""How far a run is: whether a process is at work in its folder, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fedlga.experiments.config import Experiment
from fedlga.experiments.records import ROUNDS

LOCKS = Path("/proc/locks")
RECENT = 60.0  # seconds since the last round in which a run counts as going on, where locks cannot be listed
LAST_ROUNDS = 20  # from which the length of the next ones is estimated


def find_locked() -> set[int] | None:
    """Return the inodes that a process holds a lock on; None if the system does not list them.

    A run locks its folder. To try its lock would keep a run from starting in that moment; to look does not.
    """
    try:
        lines = LOCKS.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    # "1: FLOCK  ADVISORY  WRITE 4242 08:01:131 0 EOF". Devices are left aside: some file systems show another number.
    fields = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
    return {int(place[5].rpartition(":")[2]) for place in fields if place[5].rpartition(":")[2].isdigit()}


def is_running(folder: Path, locked: set[int] | None) -> bool:
    """Return whether a process is at work in a run's folder; `locked` comes from find_locked."""
    try:
        if locked is not None:
            return folder.stat().st_ino in locked
        return time.time() - (folder / ROUNDS).stat().st_mtime < RECENT
    except OSError:
        return False


def estimate_left(e: Experiment, seconds: Sequence[float], simulated: Sequence[float]) -> float | None:
    """Return how many seconds a run still needs at most: by its rounds, or by its simulated time if that ends first.

    `seconds` and `simulated` are those of every round so far. With stop_at_target it may end sooner.
    """
    if not seconds:
        return None
    last = seconds[-LAST_ROUNDS:]
    rounds = float(max(0, e.rounds - len(seconds)))
    lasted = sum(simulated[-LAST_ROUNDS:]) / len(last)
    if e.time_limit is not None and lasted > 0:
        rounds = min(rounds, max(0.0, e.time_limit - sum(simulated)) / lasted)
    return rounds * sum(last) / len(last)
