"""Runs, comparisons and searches from Python."""

from __future__ import annotations

from pathlib import Path

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
