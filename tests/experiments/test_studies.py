"""Runs, comparisons and searches from Python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fedlga
from fedlga.core.settings import BadInput
from run_folders import assert_same_state

SMALL = fedlga.preset("digits").changed({"rounds": 3, "steps_per_epoch": 1, "lr": 0.1})


def test_an_iterator_writes_while_it_yields(tmp_path):
    """Every round is in the folder before the loop sees it. A loop that is left early can be continued."""
    out = str(tmp_path / "run")
    for record in fedlga.rounds(SMALL, out=out):
        assert len(Path(out, "rounds.jsonl").read_text().splitlines()) == record.round
        if record.round == 2:
            break
    stopped = fedlga.load(out)
    assert (len(stopped.records), stopped.summary["finished"]) == (2, False)
    run = stopped.resume()
    assert (len(run.records), run.summary["finished"]) == (3, True)
    fedlga.run(SMALL, tmp_path / "whole")
    assert_same_state(tmp_path / "whole", tmp_path / "run")
    assert len(run.resume(rounds=4).records) == 4
    assert list(fedlga.load(out).frame().index) == [1, 2, 3, 4]
    assert [r.round for r in fedlga.rounds(SMALL.changed({"rounds": 5}), out=out, resume=True)] == [5]
    with pytest.raises(BadInput, match="resume: got it without out"):
        next(iter(fedlga.rounds(SMALL, resume=True)))


def test_a_comparison_from_python(tmp_path):
    found = fedlga.compare(
        SMALL, methods=["fedavg"], arms=["fedprox drop mu=0.5"], seeds=[0, 1], out=str(tmp_path / "c")
    )
    frame = found.frame()
    assert list(frame["method"]) == ["fedavg", "fedprox"]
    assert list(frame["settings"]) == ["", "mu=0.5"]
    assert list(frame["seeds"]) == [2, 2]
    assert [(run.experiment.method, run.experiment.seed) for run in found.runs()] == [
        *(("fedavg", 0), ("fedprox", 0)),
        *(("fedavg", 1), ("fedprox", 1)),
    ]
    assert found.markdown() == (tmp_path / "c" / "comparison.md").read_text()
    assert found.latex() == (tmp_path / "c" / "comparison.tex").read_text()
    again = fedlga.compare(SMALL, out=tmp_path / "c", resume=True)
    assert again.table == found.table
    with pytest.raises(BadInput, match="already holds another run"):
        fedlga.compare(SMALL, methods=["fedavg"], out=tmp_path / "c")


def test_a_name_may_stand_for_a_list_of_one(tmp_path):
    found = fedlga.compare(SMALL, methods="fedavg, fedprox", stragglers="keep", seeds=[0], out=tmp_path / "c")
    assert [(row["method"], row["stragglers"]) for row in found.table] == [("fedavg", "keep"), ("fedprox", "keep")]
    found = fedlga.compare(SMALL, arms="fedprox drop mu=0.5", seeds=[0], out=tmp_path / "d")
    assert [(row["method"], row["settings"]) for row in found.table] == [("fedprox", "mu=0.5")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: fedlga.run("digits"),
            "experiment: got 'digits'; it takes an Experiment, such as fedlga.preset('digits')",
        ),
        (lambda: fedlga.compare("mine.py"), "experiment: got 'mine.py'; it takes an Experiment"),
        (lambda: fedlga.tune("digits", grid={"lr": [1]}), "experiment: got 'digits'; it takes an Experiment"),
        (lambda: fedlga.compare(SMALL, seeds=3), "seeds: got 3; it takes a list of whole numbers, such as [0, 1, 2]"),
        (lambda: fedlga.compare(SMALL, seeds=[]), "seeds: got []; it takes whole numbers of at least 0, one or more"),
        (lambda: fedlga.compare(SMALL, seeds=[0, 0]), "seeds: got [0, 0]; it takes whole numbers of at least 0"),
        (lambda: fedlga.compare(SMALL, seeds=["a"]), "seeds: got ['a']; it takes whole numbers of at least 0"),
        (lambda: fedlga.load(3), "load: got 3; it takes the folder of a run"),
        (
            lambda: fedlga.tune(SMALL, grid={"lr": 0.1}, methods="fedavg"),
            "grid: got lr = 0.1; it takes a dict of lists, such as {'lr': [0.01, 0.03, 0.1]}",
        ),
        (lambda: fedlga.tune(SMALL, grid="lr=0.1", methods="fedavg"), "grid: got 'lr=0.1'; it takes a dict of lists"),
        (
            lambda: fedlga.tune(SMALL, grid={"lr": [0.1]}, methods="fedavg", held_out="0-4"),
            "held_out: got '0-4'; it takes a list of whole numbers",
        ),
        (lambda: fedlga.compare(SMALL, methods=3), "methods: got 3; it takes a name or a list of names"),
        (lambda: fedlga.compare(SMALL, stragglers=["keep", None]), "stragglers: got ['keep', None]; it takes a name"),
        (lambda: fedlga.compare(SMALL, arms=[3]), "arms: got [3]; it takes texts: 'fedavg keep lr=0.1'"),
        (lambda: fedlga.compare(SMALL, arms=3), "arms: got 3; it takes texts"),
        (
            lambda: fedlga.tune(SMALL, grid={"lr": [0.1]}, methods="fedavg", widen="a"),
            "widen: got 'a'; it takes a whole number of at least 0",
        ),
        (
            lambda: fedlga.tune(SMALL, grid={"lr": [0.1]}, methods="fedavg", workers=-1),
            "workers: got -1; it takes a whole number of at least 0",
        ),
        (lambda: fedlga.frame(3), "frame: got 3; it takes records, such as fedlga.load(DIR).records"),
        (lambda: fedlga.run(SMALL, "r.pdf"), "'r.pdf'; it takes a folder, for several files"),
        (lambda: fedlga.run(SMALL, ""), "--out: got ''; it takes the name of a folder"),
    ],
)
def test_a_wrong_call_is_refused_in_a_line(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        call()
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_seeds_may_be_of_numpy(tmp_path):
    found = fedlga.compare(SMALL, methods="fedavg", seeds=np.arange(2), out=tmp_path / "c")
    assert [run.experiment.seed for run in found.runs()] == [0, 1]
    with pytest.raises(BadInput, match=r"holds no run; it takes the folder of one, such as '.*fedavg-keep/seed-0'"):
        fedlga.load(tmp_path / "c")


def test_a_run_is_not_continued_to_what_is_no_number(tmp_path):
    run = fedlga.run(SMALL, tmp_path / "r")
    with pytest.raises(BadInput, match="rounds: got '5'; it takes a whole number"):
        run.resume(rounds="5")


def test_a_run_is_shown_in_a_line(tmp_path):
    run = fedlga.run(SMALL, tmp_path / "r")
    accuracy = f"{run.summary['final_accuracy']:.4g}"
    shown = f"<Run '{tmp_path / 'r'}': fedlga (complete), digits, seed 0, 3 of 3 rounds, accuracy {accuracy}>"
    assert (repr(run), str(run)) == (shown, shown)


@pytest.mark.slow
def test_a_search_from_python(tmp_path):
    search = {"grid": {"lr": [0.05, 0.1]}, "seeds": [100], "held_out": [0], "widen": 0, "workers": 1}
    found = fedlga.tune(SMALL, stragglers=["keep"], **search, out=str(tmp_path / "t"))
    (arm,) = found.arms
    assert (arm.method, arm.policy) == ("fedavg", "keep")
    assert arm.settings["lr"] in (0.05, 0.1)
    assert [run.experiment.lr for run in found.comparison().runs()] == [arm.settings["lr"]]
    assert found.table[0].seeds == 1
    with pytest.raises(BadInput, match="arms: got none"):
        fedlga.tune(SMALL, **search)


def test_names_are_completed():
    """`dir` shows the API and nothing else; every name of it is there."""
    shown = [name for name in dir(fedlga) if not name.startswith("__")]
    assert shown == sorted(fedlga.__all__)
    assert {"load", "run", "rounds", "compare", "tune", "Experiment", "Run", "Tracker"} <= set(shown)
    assert all(getattr(fedlga, name).__doc__ for name in shown if name != "PRESETS")
