"""The committed figures of learning curves are what the files beside them give."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
sys.path.append(str(ROOT / "tools"))
import redraw_figures  # noqa: E402

CURVES = sorted(file.relative_to(RESULTS) for file in RESULTS.rglob("curves.csv"))


def test_every_study_with_learning_curves_has_them_as_numbers():
    folders = {str(file.parent) for file in CURVES}
    assert folders >= {"policies", "tuned/fleet", "schedules/fleet", "schedules/lognormal"}
    assert {RESULTS / file for file in CURVES} <= set(redraw_figures.list_files(RESULTS))


@pytest.mark.parametrize("file", CURVES, ids=str)
def test_the_committed_figure_is_what_its_curves_give(tmp_path, file):
    copy = tmp_path / file
    copy.parent.mkdir(parents=True)
    shutil.copy(RESULTS / file, copy)
    redraw_figures.draw(copy)
    (drawn,) = copy.parent.glob("*.svg")
    assert drawn.read_text() == (RESULTS / file.parent / drawn.name).read_text()


def test_curves_of_no_known_study_are_refused(tmp_path):
    folder = tmp_path / "elsewhere" / "fleet"
    folder.mkdir(parents=True)
    shutil.copy(RESULTS / "policies" / "curves.csv", folder)
    with pytest.raises(SystemExit, match="no figure is known that is drawn from it"):
        redraw_figures.draw(folder / "curves.csv")
