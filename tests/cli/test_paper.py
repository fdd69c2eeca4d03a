"""fedlga paper: every item end to end, going on after a kill, and one line for a wrong call."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from commands import start, wait_until, with_startup_code
from fedlga.paper.items import ITEMS
from fedlga.paper.runs import ItemRuns
from fedlga.paper.settings import make_setting
from run_folders import OLD_RUNS, read_everything


@pytest.mark.slow
def test_all_items_end_to_end(fedlga, tmp_path):
    """On small data: every file is there, and a second call does nothing."""
    code, _, err = fedlga("paper", "all", "--quick", "--dataset", "digits")
    assert (code, err) == (0, "")
    for name in ITEMS:
        for kind in ("md", "csv", "svg", "png", "pdf"):
            assert (tmp_path / "paper" / name / f"digits.{kind}").stat().st_size > 200, (name, kind)
    page = (tmp_path / "paper" / "rho" / "digits.md").read_text()
    assert "| FedLGA | complete | 0.1 |" in page
    assert "Does it hold here?" in page
    assert "`fedlga paper all --quick --dataset digits`" in page
    runs = find_finished(tmp_path / "paper" / "runs")
    assert runs
    before = {run: run.stat().st_mtime_ns for run in runs}
    code, out, _ = fedlga("paper", "rho", "--quick", "--dataset", "digits")
    assert code == 0
    assert "0 runs to do" in out
    assert {run: run.stat().st_mtime_ns for run in find_finished(tmp_path / "paper" / "runs")} == before


STOP_IN_THE_THIRD_RUN = """
import time
from itertools import count
from pathlib import Path
import fedlga.paper.runs as runs

numbers, run_and_record = count(1), runs.run_and_record

def stop_in_the_third_run(*arguments, **more):
    number = next(numbers)
    for record in run_and_record(*arguments, **more):
        if (number, record.round) == (3, 4):
            Path("third").touch()
            time.sleep(1_000_000)  # until it is killed
        yield record

runs.run_and_record = stop_in_the_third_run
"""


@pytest.mark.slow
def test_a_killed_item_goes_on_and_does_nothing_twice(fedlga, tmp_path):
    """Killed for real in the middle; the end is the same as without."""
    words = ["paper", "accuracy", "--quick", "--dataset", "digits", "--seeds", "0"]
    runs = tmp_path / "paper" / "runs"
    environment = with_startup_code(tmp_path / "startup", STOP_IN_THE_THIRD_RUN)
    process = start(*words, folder=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=None, text=False)
    try:
        wait_until((tmp_path / "third").exists, "the third run is in its fourth round")
    finally:
        process.kill()
        process.wait()
    before = {file: file.stat().st_mtime_ns for file in find_finished(runs)}
    assert len(before) == 2
    code, out, err = fedlga(*words)
    assert (code, err) == (0, "")
    assert f"{len(before)} done before" in out
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert fedlga(*words, "--out", "whole")[0] == 0
    timed = ("seconds_to_target", "seconds_per_round", "seconds")
    one, other = (read_rows(tmp_path / out / "accuracy" / "digits.csv", timed) for out in ("paper", "whole"))
    assert one == other


def find_finished(runs: Path) -> list[Path]:
    """Return the summaries of runs that are done, while others are going on: folders come and go there."""
    files = [Path(folder) / "summary.json" for folder, _, names in os.walk(runs) if "summary.json" in names]
    return [file for file in files if '"finished": true' in file.read_text()]


def read_rows(file: Path, without: tuple[str, ...] = ()) -> list[dict[str, str]]:
    return [{k: v for k, v in row.items() if k not in without} for row in csv.DictReader(file.read_text().splitlines())]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["paper", "acuracy"], "ITEM: there is no 'acuracy'; did you mean 'accuracy'?"),
        (["paper", "rho", "--dataset", "mnist"], "--dataset: there is no 'mnist'"),
        (["paper", "rho", "--small"], "--small: got it with fashion-mnist"),
        (["paper", "rho", "--seeds", "x"], "--seeds: got 'x'"),
    ],
)
def test_a_wrong_call_costs_one_line(fedlga, tmp_path, words, message):
    code, _, err = fedlga(*words)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_items_are_listed(fedlga):
    code, out, _ = fedlga("paper", "--list")
    assert code == 0
    assert all(item.title in out and item.says in out for item in ITEMS.values())
    assert fedlga("paper")[0] == 2


def test_another_experiment_in_the_folder_is_not_touched(fedlga, tmp_path):
    runs = ItemRuns(ITEMS["accuracy"], make_setting("digits"), [0], tmp_path / "paper")
    e, folder = runs.all()[0]
    folder.mkdir(parents=True)
    text = e.changed({"lr": 0.123}).to_toml()
    (folder / "experiment.toml").write_text(text)
    code, _, err = fedlga("paper", "accuracy", "--dataset", "digits", "--seeds", "0")
    assert code == 2
    assert "holds another experiment" in err
    assert (folder / "experiment.toml").read_text() == text


def test_runs_with_the_default_of_an_earlier_version_are_refused_and_left_as_they_are(fedlga):
    shutil.copytree(OLD_RUNS / "paper-digits", "paper/runs/digits")
    before = read_everything(Path("paper"))
    code, _, err = fedlga("paper", "tau-max", "--dataset", "digits", "--seeds", "0")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds another experiment than this item's" in err
    assert read_everything(Path("paper")) == before


@pytest.mark.slow
def test_a_committed_result_regenerates(fedlga, tmp_path):
    """`fedlga paper tau-max --quick --dataset digits --out results/paper-digits`, run again and compared.

    Another processor or compiler changes last bits, and with them a round or a few images.
    """
    committed = Path(__file__).parents[2] / "results" / "paper-digits" / "tau-max" / "digits.csv"
    code, _, err = fedlga("paper", "tau-max", "--quick", "--dataset", "digits")
    assert (code, err) == (0, "")
    before, now = (read_rows(file) for file in (committed, tmp_path / "paper" / "tau-max" / "digits.csv"))
    assert len(now) == len(before) == 48, "six methods, four values, two seeds"
    for old, new in zip(before, now, strict=True):
        assert [old[name] for name in ("point", "method", "seed")] == [
            new[name] for name in ("point", "method", "seed")
        ]
        assert float(new["best_accuracy"]) == pytest.approx(float(old["best_accuracy"]), abs=0.02)
        assert bool(new["rounds_to_target"]) == bool(old["rounds_to_target"])
