"""How far a run is: whether it is going on, and how long it takes."""

from __future__ import annotations

import os
import time

import pytest

from fedlga.experiments import progress
from fedlga.experiments.presets import preset
from fedlga.experiments.progress import estimate_left, find_locked, is_running
from fedlga.experiments.run import run_and_record


def test_a_run_is_going_on_as_long_as_its_process_holds_the_folder(tmp_path):
    steps = run_and_record(preset("digits").changed({"rounds": 3}), tmp_path / "run")
    next(steps)
    assert is_running(tmp_path / "run", find_locked())
    assert not is_running(tmp_path, find_locked())
    steps.close()
    assert not is_running(tmp_path / "run", find_locked())
    assert not is_running(tmp_path / "nowhere", find_locked())


def test_lines_of_the_list_of_locks(tmp_path, monkeypatch):
    lines = [
        "1: FLOCK  ADVISORY  WRITE 4544 fe:00:3205645 0 EOF",
        "2: POSIX  ADVISORY  WRITE 4541 fe:00:11 0 EOF",
        "3: FLOCK  ADVISORY  WRITE 30716 00:1b:15506 0 EOF",
        "3: -> FLOCK  ADVISORY  WRITE 30717 00:1b:77 0 EOF",  # this one waits
    ]
    (tmp_path / "locks").write_text("\n".join(lines))
    monkeypatch.setattr(progress, "LOCKS", tmp_path / "locks")
    assert find_locked() == {3205645, 15506}


def test_where_locks_are_not_listed_the_last_round_tells(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "LOCKS", tmp_path / "nowhere")
    assert find_locked() is None
    assert not is_running(tmp_path, None)
    (tmp_path / "rounds.jsonl").write_text("")
    assert is_running(tmp_path, None)
    hour_ago = time.time() - 3600
    os.utime(tmp_path / "rounds.jsonl", (hour_ago, hour_ago))
    assert not is_running(tmp_path, None)


def test_time_left_by_hand():
    """Of 100 rounds 30 are done; the last 20 took two seconds each, the first ten nine."""
    e = preset("digits").changed({"rounds": 100})
    seconds = [9.0] * 10 + [2.0] * 20
    assert estimate_left(e, seconds, [1.0] * 30) == pytest.approx(140.0)
    assert estimate_left(e, [], []) is None
    assert estimate_left(e.changed({"rounds": 30}), seconds, [1.0] * 30) == 0.0
    limited = e.changed({"time_limit": 36.0})  # six simulated seconds are left: six rounds
    assert estimate_left(limited, seconds, [1.0] * 30) == pytest.approx(12.0)
