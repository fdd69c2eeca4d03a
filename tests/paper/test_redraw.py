"""Drawing figures again from the rows of their runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedlga.core.settings import BadInput
from fedlga.paper.redraw import redraw

RESULTS = Path(__file__).parents[2] / "results" / "paper"


def copy(tmp_path: Path, item: str, setting: str) -> Path:
    (tmp_path / item).mkdir()
    return Path(shutil.copy(RESULTS / item / f"{setting}.csv", tmp_path / item))


def test_a_figure_says_what_it_is_about(tmp_path):
    """Bars have their values, in per cent; the note has the data set, the seeds and what whiskers are."""
    files = redraw(copy(tmp_path, "best", "fashion-mnist"))
    assert [file.suffix for file in files] == [".svg", ".png", ".pdf"]
    drawn = files[0].read_text()
    for text in ("69.6%", "80%", ">0%<", "fashion-mnist, 5 seeds; whiskers: 95 % interval of the mean", "FedDyn"):
        assert text in drawn


def test_the_committed_figure_is_what_its_rows_give(tmp_path):
    svg, *_ = redraw(copy(tmp_path, "devices", "fashion-mnist"))
    assert svg.read_text() == (RESULTS / "devices" / "fashion-mnist.svg").read_text()


def test_curves_need_their_runs(tmp_path):
    with pytest.raises(BadInput, match="figures of accuracy are not drawn from rows of runs"):
        redraw(copy(tmp_path, "accuracy", "fashion-mnist"))
