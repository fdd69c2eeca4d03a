"""Figures of learning curves: what is in them, and that coinciding curves are told apart."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fedlga.report.learning_curves import CurvePanel, draw_curves, draw_metric_over_time, find_first, find_gaps
from fedlga.report.seed_curves import SeedCurve, write_curves
from run_folders import make_record

X = np.arange(1, 11)
LINES = {arm: (arm, ("#000000", "-")) for arm in ("far", "one", "same", "near")}


def make_curves(**levels):
    """Return three seeds of each arm, ten rounds at its level; seed 2 is 0.03 higher, for every arm."""
    return {
        arm: {
            seed: SeedCurve(X, {"simulated_seconds": 5.0 * X}, {"accuracy": np.full(10, level) + 0.03 * (seed == 2)})
            for seed in range(3)
        }
        for arm, level in levels.items()
    }


def test_the_first_arm_that_another_one_coincides_with_is_what_others_are_compared_with():
    panel = CurvePanel("accuracy", "rounds", LINES)
    curves = make_curves(far=0.2, one=0.6, same=0.605, near=0.64)
    assert find_first(curves, [[panel]]) == "one"
    gaps = find_gaps(curves, panel, "one")
    assert list(gaps) == ["same", "near"]
    where, mean, half = gaps["same"]
    assert where.tolist() == X.tolist()
    assert mean == pytest.approx([0.005] * 10)
    assert half == pytest.approx([0] * 10, abs=1e-12), "what all arms of a seed share is not in a paired band"


def test_curves_that_differ_over_most_of_the_range_do_not_coincide():
    """Two arms are the same in four of ten rounds, and then in six."""
    panel = CurvePanel("accuracy", "rounds", LINES)
    for same, first in ((4, None), (6, "one")):
        curves = make_curves(one=0.5, same=0.5)
        for curve in curves["same"].values():
            curve.measures["accuracy"][same:] += 0.02
        assert find_first(curves, [[panel]]) == first


def test_what_is_no_share_coincides_within_a_hundredth_of_its_range():
    """Values from 0 to 50: a difference of 0.4 is within 0.5, one of 0.6 is not."""
    panel = CurvePanel("rmse", "rounds", LINES)
    for shift, first in ((0.4, "one"), (0.6, None)):
        arms = {"far": np.linspace(50, 10, 10), "one": np.linspace(20, 0, 10), "same": np.linspace(20, 0, 10) + shift}
        curves = {arm: {0: SeedCurve(X, {}, {"rmse": values})} for arm, values in arms.items()}
        assert find_first(curves, [[panel]]) == first


@pytest.mark.parametrize("choice", [None, True, False])
def test_differences_are_drawn_where_curves_coincide_or_as_asked(tmp_path, choice):
    panel = CurvePanel("accuracy", "rounds", LINES, "test accuracy", target=0.65)
    for levels, coincide in (({"one": 0.6, "same": 0.6}, True), ({"one": 0.6, "near": 0.64}, False)):
        draw_curves(make_curves(**levels), [tmp_path / "c.svg"], [[panel]], subject="digits", differences=choice)
        drawn = (tmp_path / "c.svg").read_text()
        wanted = coincide if choice is None else choice
        assert ("difference to one, points" in drawn) == wanted
        assert ("paired by seed" in drawn) == wanted
        assert all(text in drawn for text in ("digits, 3 seeds; shaded: 95 % interval of the mean", "65%", "rounds"))


def test_a_row_of_panels_has_differences_where_arms_are_near(tmp_path):
    """The second panel has one arm only: nothing to compare, and nothing is drawn below it."""
    alone = {"one": ("one", ("#000000", "-"))}
    rows = [[CurvePanel("accuracy", "rounds", LINES), CurvePanel("accuracy", "simulated_seconds", alone)]]
    draw_curves(make_curves(one=0.6, same=0.6), [tmp_path / "c.svg"], rows, width=7)
    assert (tmp_path / "c.svg").read_text().count("difference to one, points") == 1


def test_accuracy_over_time_has_a_line_for_each_policy(tmp_path):
    records = [make_record(round=r, accuracy=r / 10, accuracy_slow=r / 20, simulated_seconds=5.0) for r in (1, 2, 3)]
    runs = {"fedavg keep": {0: records, 1: records[:2]}, "fedavg complete": {0: records}}
    curves = write_curves(tmp_path / "curves.csv", runs, ["accuracy", "accuracy_slow"])
    files = [tmp_path / "c.svg", tmp_path / "c.png"]
    draw_metric_over_time(curves, "accuracy", 0.5, files)
    drawing = files[0].read_text()
    assert all(word in drawing for word in ("<svg", "keep", "complete", "simulated seconds", "on the slow devices"))
    assert drawing.count(">target<") == 1, "the target is one of the metric, not of the metric on some data"
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_arms_of_one_policy_look_different(tmp_path):
    """Two rates of `keep`, with two methods: a colour for each rate."""
    arms = {f"{method} keep lr={lr}": 0.1 * i for i, (method, lr) in enumerate((("fedavg", 1), ("fedavg", 2)), start=1)}
    draw_metric_over_time(make_curves(**arms), "accuracy", None, [tmp_path / "c.svg"])
    drawn = (tmp_path / "c.svg").read_text()
    assert "#D55E00".lower() in drawn.lower()
    assert "#0072B2".lower() in drawn.lower()
    assert all(text in drawn for text in ("keep lr=1", "keep lr=2"))


def test_a_target_that_is_far_from_the_lines_is_named_in_the_title(tmp_path):
    panels = [CurvePanel("accuracy", "rounds", LINES, "test accuracy", target, fit=True) for target in (0.6, 0.99)]
    draw_curves(make_curves(one=0.6, same=0.6), [tmp_path / "c.svg"], [panels], width=7)
    drawn = (tmp_path / "c.svg").read_text()
    assert drawn.count(">target<") == 1
    assert "test accuracy (target 99%: beyond the axis)" in drawn


def find_ticks(drawn: str, axis: str = "x") -> list[str]:
    """Return the marks of all axes of a drawing, as they are written."""
    return re.findall(rf'<g id="{axis}tick_\d+">.*?<text[^>]*>([^<]+)</text>', drawn, re.DOTALL)


def test_rounds_are_marked_at_whole_numbers(tmp_path):
    """Two rounds, with and without a panel of differences: matplotlib would mark 1.2, 1.4 and so on."""
    curves = {
        arm: {0: SeedCurve(X[:2], {}, {"accuracy": np.array([0.1, 0.2]) + shift})}
        for arm, shift in (("one", 0.0), ("same", 0.001))
    }
    draw_curves(curves, [tmp_path / "c.svg"], [[CurvePanel("accuracy", "rounds", LINES)]])
    drawn = (tmp_path / "c.svg").read_text()
    assert "difference to one" in drawn
    assert {tick for tick in find_ticks(drawn) if tick.startswith(("1", "2"))} == {"1", "2"}


def test_the_note_says_what_thin_lines_and_panels_of_differences_are(tmp_path):
    """`far` is not near `one`, so it is not in the lower panel; seed 2 ends before the others."""
    for cut, far in ((True, False), (False, True)):
        curves = make_curves(one=0.6, same=0.6, **({"far": 0.1} if far else {}))
        if cut:
            curves["same"][2] = SeedCurve(X[:5], {}, {"accuracy": curves["same"][2].measures["accuracy"][:5]})
        draw_curves(
            curves, [tmp_path / "c.svg"], [[CurvePanel("accuracy", "rounds", LINES)]], subject="digits", width=12
        )
        drawn = (tmp_path / "c.svg").read_text()
        assert ("thin: each seed, once the first of them has ended" in drawn) == cut
        assert "lower panels: curves near one, as the difference to it, paired by seed" in drawn
