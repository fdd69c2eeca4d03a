"""What figures of comparisons, of the paper's items and of reports are made of."""

from __future__ import annotations

import textwrap
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedlga.core.types import Record
from fedlga.experiments.statistics import FEWEST, t_quantile
from fedlga.report.seed_curves import SeedCurve, align_seeds, take_curve
from fedlga.report.style import Style

COLUMN_WIDTH = 3.5  # inches: a column of a paper
LETTERS_PER_INCH = 20  # of the note below a figure


def load_pyplot() -> Any:
    """Return matplotlib's pyplot, set up to work without a window."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


@contextmanager
def open_figure(
    files: Sequence[Path],
    columns: int = 1,
    width: float = COLUMN_WIDTH,
    height: float = 2.4,
    *,
    rows: int = 1,
    heights: Sequence[float] = (),
    note: str = "",
) -> Generator[Any]:
    """Yield panels to draw on; at the end they are written to the files, in the format of each.

    `heights` are those of the rows, in proportion. `note` stands below them: data set, seeds, what is shaded. A figure
    goes further than the text around it.
    """
    plt = load_pyplot()
    fonts = {"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "svg.fonttype": "none", "pdf.fonttype": 42}
    with plt.rc_context({**fonts, "svg.hashsalt": "fedlga"}):  # so that the same figure is the same file
        grid = {"height_ratios": heights or [1] * rows}
        figure, panels = plt.subplots(
            rows, columns, figsize=(width, height), squeeze=False, layout="constrained", gridspec_kw=grid
        )
        for panel in panels.flat:
            panel.grid(visible=True, color="#dddddd", linewidth=0.5)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
        yield panels
        if note:
            lines = textwrap.fill(note, int(width * LETTERS_PER_INCH))
            figure.supxlabel(lines, x=0.01, ha="left", fontsize=6.5, color="#444444")
        for file in files:
            dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix)
            figure.savefig(file, dpi=200, metadata=dates)
        plt.close(figure)


def describe_seeds(subject: str, counts: Sequence[int], *, shaded: bool = True) -> str:
    """Return the note below a figure: what was learned, over how many seeds, and what the interval is."""
    least, most = min(counts, default=0), max(counts, default=0)
    seeds = f"{most} seed{'' if most == 1 else 's'}" if least == most else f"{least} to {most} seeds"
    interval = ("; shaded: " if shaded else "; whiskers: ") + "95 % interval of the mean" if most >= FEWEST else ""
    return ", ".join(filter(None, (subject, seeds))) + interval


def put_legend_outside(panel: Any, names: Mapping[str, Any] | None = None, ncols: int = 0) -> None:
    """Put the legend above the panels, where it hides no data; `names` if it is of more than this panel."""
    handles, labels = panel.get_legend_handles_labels()
    names = names or dict(zip(labels, handles, strict=True))
    columns = ncols or max(1, int(panel.figure.get_figwidth() / 1.15))
    panel.figure.legend(list(names.values()), list(names), loc="outside upper left", ncols=columns, frameon=False)


def mark_target(panel: Any, target: float, text: str, *, beside: bool = False) -> None:
    """Draw the target as a line with its name: below it or, where curves would be in the way, beside the panel."""
    panel.axhline(target, color="#444444", linewidth=0.6)
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "xytext": (0, -1.5)}
    aligned = {"ha": "right", "va": "top"}
    if beside:
        place["xytext"], aligned = (2, 0), {"ha": "left", "va": "center"}
    panel.annotate(text, (1, target), fontsize=6.5, color="#444444", **place, **aligned)


def draw_with_interval(panel: Any, x: Any, runs: Any, style: Style, label: str) -> None:
    """Draw the mean over seeds; shaded: its 95 % interval, from three seeds on (that of two is too wide to show)."""
    colour, dashes = style
    mean, half = mean_with_band(runs)
    marker = "o" if len(x) == 1 else None  # a line of one point is not visible
    panel.plot(x, mean, color=colour, linestyle=dashes, linewidth=1.3, label=label, marker=marker)
    if half is not None:
        draw_band(panel, x, mean - half, mean + half, colour)


def mean_with_band(runs: Any) -> tuple[Any, Any | None]:
    """Return the mean over seeds, and half of its 95 % interval; None for fewer than three seeds."""
    values = np.asarray(runs, dtype=float)
    if len(values) < FEWEST:
        return values.mean(0), None
    return values.mean(0), t_quantile(len(values)) * values.std(0, ddof=1) / len(values) ** 0.5


def draw_band(panel: Any, x: Any, low: Any, high: Any, colour: str) -> None:
    """Shade an interval."""
    panel.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def use_percent(axis: Any) -> None:
    """Write the values of an axis, which are shares, in per cent: 45%, not 45.0%."""

    def write(value: float, _: int | None) -> str:
        return f"{100 * value:.6g}%"

    axis.set_major_formatter(write)


def use_whole_numbers(axis: Any) -> None:
    """Mark whole numbers only: there is no round 1.5, and no device 2.5."""
    axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def collect_curve(runs: Sequence[Sequence[Record]], measure: str, axis: str = "rounds") -> tuple[Any, Any]:
    """Return where a measure was taken (rounds, seconds or simulated seconds, the mean over seeds), and its values."""
    return align_seeds([_take(records, measure, axis) for records in runs], measure, axis)


def draw_remaining_seeds(
    panel: Any, runs: Sequence[Sequence[Record]], measure: str, colour: str, axis: str = "rounds"
) -> None:
    """Draw each seed's run as a thin line after the first of them has ended: from there on there is no mean."""
    draw_rest(panel, [_take(records, measure, axis) for records in runs], measure, colour, axis)


def _take(records: Sequence[Record], measure: str, axis: str) -> SeedCurve:
    return take_curve(records, [measure], [] if axis == "rounds" else [axis])


def draw_rest(panel: Any, curves: Sequence[SeedCurve], measure: str, colour: str, axis: str = "rounds") -> None:
    """Draw each seed's curve as a thin line from where the first of them has ended."""
    curves = [curve for curve in curves if len(curve.rounds)]
    common = min((curve.rounds[-1] for curve in curves), default=0)
    for curve in curves:
        values, known = curve.measured(measure)
        rest = known & (curve.rounds >= common)
        if curve.rounds[-1] > common:
            panel.plot(curve.over(axis)[rest], values[rest], color=colour, linewidth=0.5, alpha=0.6)


def fit_to_lines(panel: Any) -> None:
    """Fit the axis to the lines, not to their intervals, which can be much wider."""
    heights = [y for line in panel.get_lines() for y in line.get_ydata() if np.isfinite(y)]
    low, high = min(heights, default=0.0), max(heights, default=1.0)
    room = 0.12 * (high - low) or 0.1
    panel.set_ylim(max(0.0, low - room) if low >= 0 else low - room, high + room)
