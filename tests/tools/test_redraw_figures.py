"""The committed figures of learning curves are what the files beside them give."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fedlga.report.seed_curves import write_curves
from run_folders import make_record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
sys.path.append(str(ROOT / "tools"))
import redraw_figures  # noqa: E402

CURVES = sorted(file.relative_to(RESULTS) for file in RESULTS.rglob("curves.csv"))


def test_every_study_with_learning_curves_has_them_as_numbers():
    folders = {str(file.parent) for file in CURVES}
    assert folders >= {"policies", "tuned/fleet"}
    assert {RESULTS / file for file in CURVES} <= set(redraw_figures.list_files(RESULTS))


@pytest.mark.parametrize("file", CURVES, ids=str)
def test_the_committed_figure_is_what_its_curves_give(tmp_path, file):
    copy = tmp_path / file
    copy.parent.mkdir(parents=True)
    shutil.copy(RESULTS / file, copy)
    redraw_figures.draw(copy)
    (drawn,) = copy.parent.glob("*.svg")
    assert drawn.read_text() == (RESULTS / file.parent / drawn.name).read_text()


def test_a_figure_of_schedules_is_drawn_over_time_and_over_what_it_cost(tmp_path):
    """Seven answers, of which two coincide: the first one is what others are compared with."""
    import schedules

    def make_rounds(level):
        costs = {"bytes_down": 10**6, "bytes_up": 10**6, "device_seconds": {0: 2.0}}
        return [make_record(round=r, accuracy=level + r / 100, simulated_seconds=5.0, **costs) for r in (1, 2, 3)]

    names = [name for name, _ in schedules.LINES.values()]
    levels = dict(zip(names, (0.7, 0.7, 0.3, 0.5, 0.4, 0.6, 0.6), strict=True))
    folder = tmp_path / "schedules" / "fleet"
    folder.mkdir(parents=True)
    runs = {name: {seed: make_rounds(level + seed / 50) for seed in range(3)} for name, level in levels.items()}
    write_curves(folder / "curves.csv", runs, ["accuracy", "accuracy_slow"])
    redraw_figures.draw(folder / "curves.csv")
    drawn = (folder / "fleet.svg").read_text()
    axes = ("simulated seconds", "device seconds", "megabytes sent")
    texts = (*names, *axes, "difference to complete, points", "fashion-mnist, FedAvg", "3 seeds")
    assert [text for text in texts if text not in drawn] == []
    assert drawn.count(">75%<") == drawn.count(">target<") == len(axes)


def test_curves_of_no_known_study_are_refused(tmp_path):
    folder = tmp_path / "elsewhere" / "fleet"
    folder.mkdir(parents=True)
    shutil.copy(RESULTS / "policies" / "curves.csv", folder)
    with pytest.raises(SystemExit, match="no figure is known that is drawn from it"):
        redraw_figures.draw(folder / "curves.csv")


def test_the_committed_figure_of_the_rates_is_what_the_study_gives(tmp_path):
    folder = tmp_path / "theory"
    folder.mkdir()
    shutil.copy(RESULTS / "theory" / "study.csv", folder)
    assert RESULTS / "theory" / "study.csv" in redraw_figures.list_files(RESULTS)
    redraw_figures.draw(folder / "study.csv")
    drawn = (folder / "rates.svg").read_text()
    assert drawn == (RESULTS / "theory" / "rates.svg").read_text()
    assert "24 seeds, whiskers: 95 % interval" in drawn
    assert [rho for rho in ("1.25", "1.5", "1.75") if f">{rho}<" not in drawn] == [], "each value at its place"
