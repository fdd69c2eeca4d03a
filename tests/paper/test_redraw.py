"""Drawing figures again from the rows of their runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedlga.core.settings import BadInput
from fedlga.paper.redraw import list_drawable, redraw

RESULTS = Path(__file__).parents[2] / "results" / "paper"


def copy(tmp_path: Path, item: str, setting: str) -> Path:
    (tmp_path / item).mkdir()
    return Path(shutil.copy(RESULTS / item / f"{setting}.csv", tmp_path / item))


def test_a_figure_says_what_it_is_about(tmp_path):
    """Bars have their values, in per cent; the note has the data set, the seeds and what whiskers are."""
    files = redraw(copy(tmp_path, "best", "fashion-mnist"))
    assert [file.suffix for file in files] == [".svg", ".png", ".pdf"]
    drawn = files[0].read_text()
    for text in ("69.8%", "80%", ">0%<", "fashion-mnist, 5 seeds; whiskers: 95 % interval of the mean", "FedDyn"):
        assert text in drawn


def test_bars_of_regimes_say_what_the_regimes_are(tmp_path):
    svg, *_ = redraw(copy(tmp_path, "audit", "fashion-mnist"))
    assert "one unit of work, eta_l" in svg.read_text()


def test_the_committed_figure_is_what_its_rows_give(tmp_path):
    svg, *_ = redraw(copy(tmp_path, "rho", "fashion-mnist"))
    assert svg.read_text() == (RESULTS / "rho" / "fashion-mnist.svg").read_text()


def test_learning_curves_are_drawn_from_their_file(tmp_path):
    """A line with the mean of two seeds for each method that has rows, and the target."""
    (tmp_path / "accuracy").mkdir()
    file = tmp_path / "accuracy" / "digits.csv"
    head = "point,method,stragglers,seed,rounds_to_target\n"
    file.write_text(head + "base,fedlga,complete,0,2\nbase,fedlga,complete,1,2\nbase,fedavg,keep,0,\n")
    rows = [
        f"{arm} base,{seed},{round},{round},1,1,{value}"
        for arm, seed, values in (("fedlga complete", 0, (0.2, 0.8)), ("fedlga complete", 1, (0.4, 0.6)),
                                  ("fedavg keep", 0, (0.1, 0.3)))
        for round, value in enumerate(values, start=1)
    ]  # fmt: skip
    curves = "arm,seed,round,simulated_seconds,work_seconds,megabytes,accuracy\n" + "\n".join(rows)
    assert list_drawable(tmp_path) == [], "not yet"
    (tmp_path / "accuracy" / "digits-curves.csv").write_text(curves)
    assert list_drawable(tmp_path) == [file]
    svg, *_ = redraw(file)
    drawn = svg.read_text()
    for text in ("FedLGA", "FedAvg", "test accuracy", "target", "85%", "1 to 2 seeds"):
        assert text in drawn
    assert "Scaffold" not in drawn


def test_an_unknown_item_is_refused(tmp_path):
    (tmp_path / "speed").mkdir()
    with pytest.raises(BadInput, match="there is no item 'speed'"):
        redraw(tmp_path / "speed" / "digits.csv")
