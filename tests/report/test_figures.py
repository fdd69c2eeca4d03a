"""What figures are made of: means, intervals, seeds that go on, files that repeat."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from fedlga.report.figures import (
    collect_curve,
    draw_remaining_seeds,
    draw_with_interval,
    fit_to_lines,
    load_pyplot,
    open_figure,
    use_percent,
)
from fedlga.report.style import METHOD_COLOURS, METHOD_DASHES, METHOD_MARKERS, METHOD_NAMES, method_style, policy_style
from run_folders import make_record


class Panel:
    """A panel that only remembers what is drawn on it."""

    def __init__(self) -> None:
        self.lines: list[tuple[list[float], list[float]]] = []
        self.areas: list[tuple[list[float], list[float]]] = []

    def plot(self, x, y, **_):
        self.lines.append((list(x), list(y)))

    def fill_between(self, x, low, high, **_):
        self.areas.append((list(low), list(high)))


def test_seeds_go_on_by_themselves_where_the_first_has_ended():
    """Runs of 2 and 4 rounds: the mean is of two, and the longer one is drawn on from there."""
    drawn = []
    panel = SimpleNamespace(plot=lambda x, y, **_: drawn.append((list(x), list(y))))
    ended = [make_record(round=r, accuracy=r / 10, simulated_seconds=5.0) for r in (1, 2)]
    longer = [make_record(round=r, accuracy=r / 5, simulated_seconds=3.0) for r in (1, 2, 3, 4)]
    draw_remaining_seeds(panel, [ended, longer], "accuracy", "#000000", "simulated_seconds")
    assert drawn == [([6.0, 9.0, 12.0], [0.4, 0.6, 0.8])]
    assert collect_curve([ended, longer], "accuracy")[0].tolist() == [1, 2]
    draw_remaining_seeds(panel, [ended, ended], "accuracy", "#000000")
    assert len(drawn) == 1


def test_a_curve_is_taken_where_all_seeds_were_measured():
    """Round 2 of one seed was not evaluated; time is the mean of both seeds."""
    one = [make_record(round=r, accuracy=r / 10, seconds=1.0) for r in (1, 2, 3)]
    other = [make_record(round=r, accuracy=None if r == 2 else r / 5, seconds=3.0) for r in (1, 2, 3)]
    x, values = collect_curve([one, other], "accuracy", "seconds")
    assert x.tolist() == [2.0, 6.0]
    np.testing.assert_allclose(values, [[0.1, 0.3], [0.2, 0.6]])


def test_an_interval_needs_three_seeds():
    """Values 1, 2, 4 in both points: mean 7/3, half-width 4.30265 sqrt(7/3) / sqrt(3)."""
    panel = Panel()
    draw_with_interval(panel, [1, 2], [[1, 1], [2, 2]], ("#000000", "-"), "two")
    assert panel.lines == [([1, 2], [1.5, 1.5])]
    assert panel.areas == []
    draw_with_interval(panel, [1, 2], [[1, 1], [2, 2], [4, 4]], ("#000000", "-"), "three")
    ((low, high),) = panel.areas
    half = 4.30265 * (7 / 3) ** 0.5 / 3**0.5
    assert low == pytest.approx([7 / 3 - half] * 2, rel=1e-4)
    assert high == pytest.approx([7 / 3 + half] * 2, rel=1e-4)


def test_the_axis_fits_the_lines():
    plt = load_pyplot()
    figure, panel = plt.subplots()
    panel.plot([0, 1], [0.4, 0.9])
    fit_to_lines(panel)
    assert panel.get_ylim() == pytest.approx((0.34, 0.96))
    plt.close(figure)


def test_every_method_looks_different_also_in_grey():
    assert METHOD_NAMES.keys() == METHOD_COLOURS.keys() == METHOD_DASHES.keys() == METHOD_MARKERS.keys()
    assert len({method_style(method) for method in METHOD_NAMES}) == 6
    assert len({method_style(method)[1] for method in METHOD_NAMES}) == 6
    assert len({policy_style(policy) for policy in ("wait", "drop", "keep", "complete")}) == 4
    assert method_style("mine:Mine") == policy_style("mine:Mine") == ("#000000", "-")


def test_the_same_figure_is_the_same_file(tmp_path):
    for name in ("a", "b"):
        with open_figure([tmp_path / f"{name}.{ending}" for ending in ("svg", "png", "pdf")]) as ((panel,),):
            panel.plot([1, 2], [3, 4])
    for ending in ("svg", "png", "pdf"):
        one, other = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("a", "b"))
        assert one == other
        assert len(one) > 200


@pytest.mark.parametrize(
    ("share", "text"), [(0.45, "45%"), (0.15, "15%"), (0.1225, "12.25%"), (1.0, "100%"), (0, "0%")]
)
def test_shares_are_written_in_per_cent_without_zeros(share, text):
    axis = Figure().subplots().yaxis
    use_percent(axis)
    assert axis.get_major_formatter()(share, 0) == text
