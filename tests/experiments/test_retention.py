"""Old runs go, oldest first; what goes on, could be continued, or is no run stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedlga.core.settings import BadInput
from fedlga.experiments import retention
from fedlga.experiments.folder import hold_folder
from fedlga.experiments.retention import prune_runs


def make_run(parent, name, age, *, finished=True):
    folder = parent / name
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text("")
    (folder / "rounds.jsonl").write_text("{}\n")
    if finished:
        (folder / "summary.json").write_text("{}")
    when = 2_000_000_000 - age
    os.utime(folder / "rounds.jsonl", (when, when))
    return folder


def test_the_newest_finished_runs_stay(tmp_path):
    runs = [make_run(tmp_path, f"r{age}", age) for age in range(5)]
    going = make_run(tmp_path, "unfinished", 9, finished=False)
    other = tmp_path / "notes"
    other.mkdir()
    would = prune_runs(tmp_path, keep=2, dry_run=True)
    assert [path for path, _ in would] == runs[2:]
    assert all(run.exists() for run in runs)
    assert [path for path, _ in prune_runs(tmp_path, keep=2)] == runs[2:]
    assert [run.exists() for run in runs] == [True, True, False, False, False]
    assert going.exists()
    assert other.exists()
    assert [path for path, _ in prune_runs(tmp_path, keep=0, unfinished=True)] == [*runs[:2], going]


def test_young_runs_stay(tmp_path):
    make_run(tmp_path, "young", 0)  # written to in the future
    assert prune_runs(tmp_path, keep=0, days=1) == []
    assert len(prune_runs(tmp_path, keep=0)) == 1


def test_a_run_that_goes_on_is_never_removed(tmp_path):
    """Another process holds its folder, as a run does."""
    folder = make_run(tmp_path, "going", 5)
    program = (
        "import sys, pathlib\nfrom fedlga.experiments.folder import hold_folder\n"
        "with hold_folder(pathlib.Path(sys.argv[1])) as held:\n    print(held, flush=True)\n    sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], **pipes) as process:
        assert process.stdout.readline() == "True\n"
        assert prune_runs(tmp_path, keep=0, unfinished=True) == []
        with hold_folder(folder) as held:
            assert not held
        process.stdin.close()
        process.wait()
    assert [path for path, _ in prune_runs(tmp_path, keep=0)] == [folder]


def test_a_link_is_not_followed(tmp_path):
    outside = make_run(tmp_path / "outside", "precious", 5)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "link").symlink_to(outside)
    assert prune_runs(tmp_path / "runs", keep=0) == []
    assert outside.exists()


def test_a_run_with_another_inside_stays(tmp_path):
    outer = make_run(tmp_path, "outer", 9)
    inner = make_run(outer, "inner", 1, finished=False)
    assert prune_runs(tmp_path, keep=0, unfinished=True) == []
    assert inner.exists()


def test_a_run_that_somebody_else_removes_just_then_is_no_error(tmp_path, monkeypatch):
    first, second = (make_run(tmp_path, name, age) for name, age in (("first", 9), ("second", 5)))
    iterdir = Path.iterdir

    def list_and_remove(path):
        names = [*iterdir(path)]
        if first.exists() and path == tmp_path:
            monkeypatch.setattr(retention, "_is_run", lambda run: True)
            shutil.rmtree(first)
        return names

    monkeypatch.setattr(Path, "iterdir", list_and_remove)
    assert [path for path, _ in prune_runs(tmp_path, keep=0)] == [second]


def test_what_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(BadInput, match="--keep: got -1"):
        prune_runs(tmp_path, keep=-1)
    with pytest.raises(BadInput, match="--days: got nan"):
        prune_runs(tmp_path, keep=1, days=float("nan"))
    assert prune_runs(tmp_path / "nothing", keep=1) == []
