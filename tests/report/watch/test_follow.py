"""Following a run folder: only what is new is read, and what a run takes back is forgotten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedlga.report.devices import COMPLETED, FINISHED, KEPT
from fedlga.report.watch.follow import COLUMNS, FollowedRun, list_commands
from run_folders import append_records, make_record, start_run


@pytest.fixture
def folder(tmp_path) -> Path:
    return start_run(tmp_path / "run", rounds=10, target=0.6)


def test_a_row_by_hand(folder):
    """Three devices: 1 finished, 2 and 3 were completed by 1.5 and 2.5, so the median is 2."""
    append_records(
        folder,
        make_record(
            devices=[1, 2, 3],
            steps=[5, 2, 3],
            steps_asked=[5, 5, 5],
            used=[1, 2, 3],
            scales={2: 1.5, 3: 2.5},
            growth=0.25,
            seconds=2.0,
            simulated_seconds=7.0,
            device_seconds={1: 3.0, 2: 4.0},
            bytes_down=2_000_000,
            bytes_up=1_000_000,
            accuracy=0.7,
        ),
    )
    run = FollowedRun(folder)
    forget, (row,) = run.read_new()
    assert not forget
    values = dict(zip([*COLUMNS, *run.metrics], row, strict=True))
    assert values == {
        "round": 1,
        "seconds": 2.0,
        "simulated_seconds": 7.0,
        "work_seconds": 7.0,
        "megabytes": 3.0,
        "train_loss": 1.0,
        "growth": 0.25,
        "scale_low": 1.5,
        "scale_median": 2.0,
        "scale_high": 2.5,
        "asked": 3,
        "unfinished": 2,
        "accuracy": 0.7,
        "loss": 1.0,
        "accuracy_slow": None,
        "accuracy_worst": None,
    }
    about = run.describe(set())
    assert (about["reached"], about["best"], about["unfinished"], about["asked"]) == (1, 0.7, 2, 3)
    devices = run.describe_devices()
    assert [d["device"] for d in devices["devices"]] == [2, 3, 1], "the slow ones first"
    assert devices["devices"][0]["scale"] == 1.5
    assert devices["recent"] == [(1, [(1, FINISHED), (2, COMPLETED), (3, COMPLETED)])]


def test_only_new_rounds_are_read(folder):
    append_records(folder, make_record(round=1), make_record(round=2))
    run = FollowedRun(folder)
    assert [row[0] for row in run.read_new()[1]] == [1, 2]
    assert run.read_new() == (False, [])
    with (folder / "rounds.jsonl").open("a") as lines:  # a line that is half written is not read yet
        whole = json.dumps(make_record(round=3).as_dict()) + "\n"
        lines.write(whole[:40])
        lines.flush()
        assert run.read_new() == (False, [])
        lines.write(whole[40:])
    assert [row[0] for row in run.read_new()[1]] == [3]


@pytest.mark.parametrize("again", [1, 3, 9])
def test_a_run_that_went_back_is_read_again(folder, again):
    """A run continues from its checkpoint, of round 2; when it is looked at again, it is shorter, as long or longer."""
    append_records(folder, *(make_record(round=r, seconds=1.0) for r in range(1, 6)))
    run = FollowedRun(folder)
    assert len(run.read_new()[1]) == 5
    append_records(
        folder, *(make_record(round=r, seconds=1.0 if r < 3 else 1.25) for r in range(1, 3 + again)), mode="w"
    )
    seen, forgot = [], False
    for _ in range(2):
        forget, rows = run.read_new()
        seen, forgot = (rows if forget else seen + rows), forgot or forget
    if forgot:
        assert [row[0] for row in seen] == list(range(1, 3 + again))
    else:  # the same length to the byte: rounds are the same again, all but their seconds
        assert again == 3


def test_what_is_damaged_is_said(folder):
    append_records(folder, make_record(round=1))
    with (folder / "rounds.jsonl").open("a") as lines:
        lines.write('{"version": 3}\n')
    run = FollowedRun(folder)
    assert len(run.read_new()[1]) == 1
    assert run.find_state(set()) == "damaged"
    assert run.describe(set())["problem"] == "record: the field 'metrics' does not list metrics that are there"


def test_states(folder):
    run = FollowedRun(folder)
    inode = {folder.stat().st_ino}
    run.read_new()
    assert run.find_state(set()) == "not started"
    assert run.find_state(inode) == "running"
    append_records(folder, make_record(round=1, accuracy=None, seconds=3.0))
    run.read_new()
    assert run.find_state(set()) == "stopped"
    assert run.describe(inode)["left"] == 27.0, "nine rounds of three seconds"
    assert run.describe(set())["left"] is None
    append_records(folder, *(make_record(round=r, diverged=r == 10) for r in range(2, 11)))
    run.read_new()
    assert run.find_state(inode) == "diverged"


def test_a_run_that_is_given_more_rounds_goes_on(folder):
    append_records(folder, *(make_record(round=r) for r in range(1, 11)))
    run = FollowedRun(folder)
    run.read_new()
    assert run.find_state(set()) == "finished"
    toml = folder / "experiment.toml"
    toml.write_text(toml.read_text().replace("rounds = 10", "rounds = 12"))
    os.utime(toml, ns=(1, 1))  # another time, also if both were written within one tick of the clock
    run.read_new()
    assert (run.find_state(set()), run.describe(set())["rounds"]) == ("stopped", 12)


def test_texts_of_devices_are_messages(folder):
    append_records(
        folder,
        make_record(refused={4: "<b>no</b>" * 200}, note="odd", devices=[4], steps=[1], steps_asked=[2], used=[4]),
    )
    run = FollowedRun(folder)
    run.read_new()
    messages = [m["text"] for m in run.describe_devices()["messages"]]
    assert messages[1] == "odd"
    assert messages[0].startswith("device 4 was refused: <b>no</b>")
    assert len(messages[0]) == 500
    assert run.describe_devices()["recent"] == [(1, [(4, KEPT)])]


def test_commands(tmp_path):
    alone = start_run(tmp_path / "a run")
    assert list_commands(alone)["resume"] == f"fedlga run --resume '{alone}'"
    part = start_run(tmp_path / "c" / "fedavg-keep" / "seed-0")
    (tmp_path / "c" / "comparison.toml").write_text("")
    assert list_commands(part)["resume"] == f"fedlga compare --resume {tmp_path / 'c'}"
    assert list_commands(part)["repeat"] == f"fedlga run {part / 'experiment.toml'}"
