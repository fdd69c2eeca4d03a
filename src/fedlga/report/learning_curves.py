"""Figures of learning curves, drawn from curves.csv: means with intervals, and differences where curves coincide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedlga.experiments.measures import format_target, is_percentage
from fedlga.report.figures import (
    describe_seeds,
    draw_band,
    draw_rest,
    draw_with_interval,
    fit_to_lines,
    mark_target,
    mean_with_band,
    open_figure,
    put_legend_outside,
    use_percent,
    use_whole_numbers,
)
from fedlga.report.seed_curves import Curves, SeedCurve, align_seeds, pair_seeds
from fedlga.report.style import Style, choose_policy_styles

AXES = {
    "rounds": "rounds",
    "simulated_seconds": "simulated seconds",
    "work_seconds": "device seconds",
    "megabytes": "megabytes sent",
}
POINT = 0.01  # curves coincide that differ by no more over most of their range: a percentage point, or 1 % of the range
NEAR = 5  # points: arms that differ by more, in the median, are not in a panel of differences
MOST_METHODS = 6  # rows of panels in a figure
DIFFERENCE_HEIGHT = 0.55  # of a panel of differences, in heights of a panel of curves

Lines = Mapping[str, tuple[str, Style]]  # arm in the file -> its name in the figure, colour and dashes
Gaps = Mapping[str, tuple[Any, Any, Any | None]]  # arm -> where, mean difference, half of its 95 % interval


@dataclass(frozen=True)
class CurvePanel:
    """One panel of a figure: a measure of some arms over an axis."""

    measure: str
    axis: str
    lines: Lines
    title: str = ""
    target: float | None = None
    fit: bool = False  # the axis is fitted to the lines; else shares begin at zero

    @property
    def is_share(self) -> bool:
        """Whether values are shares, which are written in per cent."""
        return is_percentage(self.measure)


def draw_curves(
    curves: Curves,
    files: Sequence[Path],
    rows: Sequence[Sequence[CurvePanel]],
    *,
    subject: str = "",
    width: float = 3.6,
    height: float = 2.4,
    differences: bool | None = None,
) -> None:
    """Draw panels of learning curves: means over the seeds, their 95 % intervals, seeds that go on after others ended.

    Where curves coincide, a smaller panel below shows how far arms are from one of them, paired by seed. It is the
    first arm that another one coincides with, the same in all panels. `differences` says to draw these panels always
    or never; None: where curves coincide. `height` is that of a row of curves, in inches.
    """
    first = None if differences is False else find_first(curves, rows)
    if differences and first is None:
        first = next((arm for arm in rows[0][0].lines if arm in curves), None)
    gaps = [[find_gaps(curves, panel, first) for panel in row] for row in rows]
    shown = [any(each) for each in gaps]  # whether a row has a second one with differences
    heights = [part for s in shown for part in ([1, DIFFERENCE_HEIGHT] if s else [1])]
    arms = dict.fromkeys(arm for row in rows for panel in row for arm in panel.lines if arm in curves)
    note = describe_seeds(subject, [len(curves[arm]) for arm in arms])
    if any(_ends_apart(curves[arm].values()) for arm in arms):
        note += "; thin: each seed, once the first of them has ended"
    if any(shown) and first is not None:
        note += f"; lower panels: curves near {_name(rows, first)}, as the difference to it, paired by seed"
    columns = max(len(row) for row in rows)
    with open_figure(
        files, columns, width, height * sum(heights) + 0.5, rows=len(heights), heights=heights, note=note
    ) as panels:
        names: dict[str, Any] = {}
        line = 0
        for row, row_gaps, below in zip(rows, gaps, shown, strict=True):
            for column, (panel, gap) in enumerate(zip(row, row_gaps, strict=True)):
                upper = panels[line][column]
                _draw_panel(upper, curves, panel)
                handles, labels = upper.get_legend_handles_labels()
                names |= dict(zip(labels, handles, strict=True))
                if below and first is not None:
                    upper.tick_params(labelbottom=False)
                    _draw_gaps(panels[line + 1][column], upper, panel, gap, first)
                (panels[line + 1][column] if below else upper).set_xlabel(AXES[panel.axis])
            line += 1 + below
        put_legend_outside(panels[0][0], names, ncols=_count_columns(list(names), width))


def _ends_apart(curves: Iterable[SeedCurve]) -> bool:
    """Return whether some seeds of an arm go on after others have ended."""
    return len({int(curve.rounds[-1]) for curve in curves if len(curve.rounds)}) > 1


def find_first(curves: Curves, rows: Sequence[Sequence[CurvePanel]]) -> str | None:
    """Return the first arm that another one coincides with in some panel; None if no curves coincide."""
    panels = [panel for row in rows for panel in row]
    for arm in dict.fromkeys(arm for panel in panels for arm in panel.lines):
        for panel in panels:
            if any(_coincides(mean, _tolerance(curves, panel)) for _, mean, _ in _compare(curves, panel, arm).values()):
                return arm
    return None


def find_gaps(curves: Curves, panel: CurvePanel, first: str | None) -> Gaps:
    """Return the difference to one arm of those that are near it in a panel."""
    if first is None:
        return {}
    most = NEAR * _tolerance(curves, panel)
    return {arm: gap for arm, gap in _compare(curves, panel, first).items() if np.median(np.abs(gap[1])) <= most}


def _compare(curves: Curves, panel: CurvePanel, first: str) -> Gaps:
    """Return the difference of each other arm of a panel to one, where both were measured."""
    gaps: dict[str, tuple[Any, Any, Any | None]] = {}
    for arm in panel.lines:
        if arm != first and first in panel.lines and arm in curves and first in curves:
            where, values = pair_seeds(curves[arm], curves[first], panel.measure, panel.axis)
            if len(where) > 1:
                gaps[arm] = (where, *mean_with_band(values))
    return gaps


def _coincides(mean: Any, tolerance: float) -> bool:
    within = np.abs(mean) <= tolerance
    return bool(2 * within.sum() > len(within))  # most of the range


def _tolerance(curves: Curves, panel: CurvePanel) -> float:
    """Return the largest difference that cannot be seen: a percentage point, or its like for what is no share."""
    if panel.is_share:
        return POINT
    means = [
        align_seeds(curves[arm].values(), panel.measure, panel.axis)[1].mean(0) for arm in panel.lines if arm in curves
    ]
    values = np.concatenate(means) if means else np.array([])
    return POINT * float(np.ptp(values)) if len(values) else 0.0


def _draw_panel(axes: Any, curves: Curves, panel: CurvePanel) -> None:
    for arm, (name, style) in panel.lines.items():
        if arm in curves:
            x, values = align_seeds(curves[arm].values(), panel.measure, panel.axis)
            draw_with_interval(axes, x, values, style, name)
            draw_rest(axes, list(curves[arm].values()), panel.measure, style[0], panel.axis)
    title, fitted = panel.title, panel.fit or not panel.is_share
    if fitted:
        fit_to_lines(axes)
    if panel.target is not None:
        target, (low, high) = format_target(panel.measure, panel.target), axes.get_ylim()
        if not fitted or low <= panel.target <= high:  # an axis that is not fitted grows to show it
            mark_target(axes, panel.target, f"target\n{target}", beside=True)
        else:  # to show it would squeeze the lines
            title = f"{title} (target {target}: beyond the axis)"
    if panel.is_share:
        use_percent(axes.yaxis)
    if not fitted:
        axes.set_ylim(bottom=0)
    if panel.axis == "rounds":
        use_whole_numbers(axes.xaxis)
    axes.set_title(title, loc="left")


def _draw_gaps(axes: Any, upper: Any, panel: CurvePanel, gaps: Gaps, first: str) -> None:
    """Draw differences below the curves; of shares in percentage points."""
    if not gaps:
        axes.set_visible(False)
        return
    scale = 100 if panel.is_share else 1
    colour, dashes = panel.lines[first][1]
    axes.axhline(0, color=colour, linestyle=dashes, linewidth=1.0)
    reach = 0.0
    for arm, (where, mean, half) in gaps.items():
        colour, dashes = panel.lines[arm][1]
        axes.plot(where, scale * mean, color=colour, linestyle=dashes, linewidth=1.1)
        outer = np.abs(scale * mean) + (0 if half is None else scale * half)
        reach = max(reach, float(np.quantile(outer, 0.9)))  # the first evaluations may differ by far more
        if half is not None:
            draw_band(axes, where, scale * (mean - half), scale * (mean + half), colour)
    axes.set_ylim(-1.15 * reach or -1, 1.15 * reach or 1)
    axes.set_xlim(upper.get_xlim())
    if panel.axis == "rounds":
        use_whole_numbers(axes.xaxis)
    points = ", points" if panel.is_share else ""
    axes.set_title(f"difference to {panel.lines[first][0]}{points}", loc="left", fontsize=7)


def _count_columns(names: Sequence[str], width: float) -> int:
    """Return how many names a row of the legend has: what fits into the width in inches, in rows of the same length."""
    fit = max(1, int(width / (0.5 + 0.06 * max(map(len, names), default=0))))
    return -(-len(names) // -(-len(names) // fit)) if names else 1


def _name(rows: Sequence[Sequence[CurvePanel]], arm: str) -> str:
    return next(panel.lines[arm][0] for row in rows for panel in row if arm in panel.lines)


def draw_metric_over_time(
    curves: Curves, metric: str, target: float | None, files: Sequence[Path], subject: str = ""
) -> None:
    """Draw the target metric over simulated seconds, a line a policy, a row of panels a method.

    Arms are 'METHOD POLICY SETTINGS'. `subject` is what was learned. Where some devices are always slow, a second
    column shows the metric on data like theirs.
    """
    policies = list(dict.fromkeys(arm.partition(" ")[2] for arm in curves))
    styles = dict(zip(policies, choose_policy_styles(policies), strict=True))
    by_method: dict[str, dict[str, tuple[str, Style]]] = {}
    for arm in curves:
        method, _, policy = arm.partition(" ")
        by_method.setdefault(method, {})[arm] = (policy, styles[policy])
    several = len(by_method) > 1
    of_slow = f"{metric}_slow"
    slow = any(of_slow in curve.measures for by_seed in curves.values() for curve in by_seed.values())
    titles = {metric: f"test {metric}", **({of_slow: "on the slow devices' data"} if slow else {})}
    rows = [
        [
            CurvePanel(
                measure,
                "simulated_seconds",
                lines,
                f"{method}: {title}" if several else title,
                target if measure == metric else None,
            )
            for measure, title in titles.items()
        ]
        for method, lines in list(by_method.items())[:MOST_METHODS]
    ]
    draw_curves(curves, files, rows, subject=subject, width=3.6 * len(titles) + 0.4)
