"""Folders of an earlier version: they can be read, shown on a page, and continued or refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

import fedlga
from fedlga.core.settings import BadInput
from fedlga.core.types import RECORD_VERSION
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_run, read_summary
from fedlga.experiments.run import load_for_resume, run_and_record
from fedlga.report.page import collect_runs, make_page
from run_folders import OLD_RUNS, read_everything, read_weights

# What the folders hold, as it was asked for then.
COMMON = {"rounds": 8, "steps_per_epoch": 2, "rho": 0.7}
KEPT = {**COMMON, "stragglers": "keep", "method": "scaffold", "devices": 5, "cohort": 3}
ASKED = {
    "half-scaffold": preset("digits").changed(KEPT),
    "half-fedlga": preset("digits").changed({**COMMON, "method": "fedlga", "scale": "trusted"}),
}


@pytest.fixture(params=ASKED)
def old_run(request, tmp_path) -> Path:
    """A copy of an old folder."""
    return Path(shutil.copytree(OLD_RUNS / request.param, tmp_path / request.param))


def test_an_old_experiment_is_the_same_experiment(old_run):
    written = Experiment.load(old_run / "experiment.toml")
    assert written.resolved() == ASKED[old_run.name].resolved()
    assert written.settings("fleet") == {"rho": 0.7, "tau_min": 1, "tau_max": 4}
    assert written.settings("optimizer") == {"eta_g": 1.0}


def test_old_records_can_be_read(old_run):
    before = read_everything(old_run)
    run = read_run(old_run)
    assert [r.round for r in run.records] == [1, 2, 3, 4]
    assert not any(r.diverged or r.bounded for r in run.records)
    lines = [json.loads(line) for line in (old_run / "rounds.jsonl").read_text().splitlines()]
    assert "version" not in lines[0]
    for line, record in zip(lines, run.records, strict=True):
        values = record.as_dict()
        assert {name: json.loads(json.dumps(values[name])) for name in line} == line
    written = json.loads((old_run / "summary.json").read_text())
    assert {name: run.summary[name] for name in written if name not in ("versions", "compiled")} == {
        name: value for name, value in written.items() if name not in ("versions", "compiled")
    }
    assert read_summary(old_run) == {}, "it is not finished"
    assert read_everything(old_run) == before


def test_an_old_run_has_a_page(old_run):
    page = make_page(collect_runs([old_run]))
    assert "stopped early" not in page, "it may be going on"
    assert re.search(r"is not over: \d+ of \d+ rounds", page)
    assert "What became of the work of" in page


@pytest.fixture
def old_scaffold(tmp_path) -> Path:
    """A copy of the folder whose parts are all still there."""
    return Path(shutil.copytree(OLD_RUNS / "half-scaffold", tmp_path / "half-scaffold"))


def test_an_old_run_goes_on_as_if_it_were_new(old_scaffold, tmp_path):
    """The first rounds stay as they were; the end is that of a run of today, without an interruption.

    On a machine like the one that made the folder it is the same to the last bit. Others round differently.
    """
    old_run = old_scaffold
    lines = (old_run / "rounds.jsonl").read_bytes()
    whole = fedlga.run(ASKED[old_run.name], tmp_path / "whole")
    records = list(run_and_record(load_for_resume(old_run, {}), old_run, resume=True))
    assert [r.round for r in records] == [5, 6, 7, 8]
    assert (old_run / "rounds.jsonl").read_bytes().startswith(lines)
    continued = read_run(old_run)
    assert continued.experiment == whole.experiment
    assert continued.summary["finished"] is True
    for old, new in zip(continued.records, whole.records, strict=True):
        assert (old.devices, old.steps, old.steps_asked, old.slow, old.absent, old.used, old.lr) == (
            *(new.devices, new.steps, new.steps_asked, new.slow, new.absent, new.used, new.lr),
        )
        assert old.simulated_seconds == new.simulated_seconds
        assert old.loss == pytest.approx(new.loss, rel=1e-3)
    weights = read_weights(tmp_path / "whole")
    assert read_weights(old_run).keys() == weights.keys()
    for name, tensor in read_weights(old_run).items():
        torch.testing.assert_close(tensor, weights[name], rtol=1e-4, atol=1e-5)
    versions = [json.loads(line).get("version", 1) for line in (old_run / "rounds.jsonl").read_text().splitlines()]
    assert versions == [1] * 4 + [RECORD_VERSION] * 4


def test_an_old_run_with_a_scale_that_is_gone_is_refused_and_left_as_it_was(tmp_path):
    folder = Path(shutil.copytree(OLD_RUNS / "half-fedlga", tmp_path / "half-fedlga"))
    before = read_everything(folder)
    with pytest.raises(BadInput, match=r"complete\.scale: 'trusted' is no longer there") as error:
        list(run_and_record(load_for_resume(folder, {}), folder, resume=True))
    assert "\n" not in str(error.value)
    assert read_everything(folder) == before


def test_old_first_rounds_are_those_of_a_run_of_today(old_scaffold, tmp_path):
    """Who was selected, how far they got and what it cost is drawn with whole numbers: equal on every machine."""
    old_run = old_scaffold
    whole = fedlga.run(ASKED[old_run.name].changed({"rounds": 4}), tmp_path / "whole")
    for old, new in zip(read_run(old_run).records, whole.records, strict=True):
        assert (old.devices, old.steps, old.steps_asked, old.slow, old.used) == (
            *(new.devices, new.steps, new.steps_asked, new.slow, new.used),
        )
        assert old.loss == pytest.approx(new.loss, rel=1e-3)
        assert old.accuracy == pytest.approx(new.accuracy, abs=0.02)
