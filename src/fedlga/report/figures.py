"""What figures of comparisons, of the paper's items and of reports are made of."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedlga.core.types import Record
from fedlga.experiments.measures import is_percentage, value_of
from fedlga.experiments.statistics import FEWEST, t_quantile
from fedlga.report.style import METHOD_COLOURS, METHOD_DASHES, POLICY_COLOURS, POLICY_DASHES

COLUMN_WIDTH = 3.5  # inches: a column of a paper
MOST_METHODS = 6  # rows of panels in a figure

Curves = Mapping[tuple[str, str], Sequence[Sequence[Record]]]  # method and policy -> a run's records for each seed


def draw_metric_over_time(curves: Curves, metric: str, target: float | None, files: Sequence[Path]) -> None:
    """Draw the target metric over simulated seconds, a line a policy, a row of panels a method; shaded: the 95 %
    interval.

    Where some devices are always slow, a second column shows the metric on data like theirs.
    """
    plt = load_pyplot()
    methods = list(dict.fromkeys(method for method, _ in curves))[:MOST_METHODS]
    of_slow = f"{metric}_slow"
    slow = any(value_of(r, of_slow) is not None for runs in curves.values() for records in runs for r in records)
    measures = {metric: f"test {metric}", **({of_slow: "on the slow devices' data"} if slow else {})}
    figure, axes = plt.subplots(
        len(methods),
        len(measures),
        figsize=(3.6 * len(measures) + 0.4, 2.4 * len(methods) + 0.3),
        squeeze=False,
        sharex="row",
        layout="constrained",
    )
    for row, method in enumerate(methods):
        for column, (measure, title) in enumerate(measures.items()):
            panel = axes[row][column]
            for (name, policy), runs in curves.items():
                if name == method and runs:
                    seconds, values = collect_curve(runs, measure, "simulated_seconds")
                    style = policy_style(policy)
                    draw_with_interval(panel, seconds, values, style, policy)
                    draw_remaining_seeds(panel, runs, measure, style[0], "simulated_seconds")
            if target is not None:
                panel.axhline(target, color="#444444", linewidth=0.6)
            panel.set_title(f"{method}: {title}" if len(methods) > 1 else title, fontsize=9, loc="left")
            panel.set_xlabel("simulated seconds", fontsize=8)
            if is_percentage(metric):
                panel.set_ylim(0, 1)
            panel.tick_params(labelsize=8)
            panel.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes[0][0].legend(fontsize=8, loc="lower right", frameon=False)
    for file in files:
        figure.savefig(file, dpi=160)
    plt.close(figure)


def load_pyplot() -> Any:
    """Return matplotlib's pyplot, set up to work without a window."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


@contextmanager
def open_figure(
    files: Sequence[Path], columns: int = 1, width: float = COLUMN_WIDTH, height: float = 2.4
) -> Generator[Any]:
    """Yield panels to draw on; at the end they are written to the files, in the format of each."""
    plt = load_pyplot()
    fonts = {"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "svg.fonttype": "none", "pdf.fonttype": 42}
    with plt.rc_context({**fonts, "svg.hashsalt": "fedlga"}):  # so that the same figure is the same file
        figure, panels = plt.subplots(1, columns, figsize=(width, height), squeeze=False, layout="constrained")
        for panel in panels.flat:
            panel.grid(visible=True, color="#dddddd", linewidth=0.5)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
        yield panels
        for file in files:
            dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix)
            figure.savefig(file, dpi=200, metadata=dates)
        plt.close(figure)


Style = tuple[str, Any]  # colour and dashes


def method_style(method: str) -> Style:
    """Return the colour and dashes of a method."""
    return METHOD_COLOURS.get(method, "#000000"), METHOD_DASHES.get(method, "-")


def policy_style(policy: str) -> Style:
    """Return the colour and dashes of a policy; an arm's own settings may follow its name."""
    policy = policy.partition(" ")[0]
    return POLICY_COLOURS.get(policy, "#000000"), POLICY_DASHES.get(policy, "-")


def draw_with_interval(panel: Any, x: Any, runs: Any, style: Style, label: str) -> None:
    """Draw the mean over seeds; shaded: its 95 % interval, from three seeds on (that of two is too wide to show)."""
    colour, dashes = style
    values = np.asarray(runs, dtype=float)
    mean = values.mean(0)
    marker = "o" if len(x) == 1 else None  # a line of one point is not visible
    panel.plot(x, mean, color=colour, linestyle=dashes, linewidth=1.3, label=label, marker=marker)
    if len(values) >= FEWEST:
        half = t_quantile(len(values)) * values.std(0, ddof=1) / len(values) ** 0.5
        panel.fill_between(x, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)


def collect_curve(runs: Sequence[Sequence[Record]], measure: str, axis: str = "rounds") -> tuple[Any, Any]:
    """Return where a measure was taken (rounds, seconds or simulated seconds, the mean over seeds), and its values."""
    shortest = min(len(records) for records in runs)
    taken = [i for i in range(shortest) if all(value_of(records[i], measure) is not None for records in runs)]
    if axis == "rounds":
        x = np.array([runs[0][i].round for i in taken])
    else:
        spent = np.array([np.cumsum([getattr(r, axis) for r in records[:shortest]]) for records in runs]).mean(0)
        x = spent[taken]
    return x, np.array([[value_of(records[i], measure) for i in taken] for records in runs], dtype=float)


def draw_remaining_seeds(
    panel: Any, runs: Sequence[Sequence[Record]], measure: str, colour: str, axis: str = "rounds"
) -> None:
    """Draw each seed's run as a thin line after the first of them has ended: from there on there is no mean."""
    shortest = min(len(records) for records in runs)
    for records in runs:
        if len(records) > shortest:
            rest = collect_curve([records], measure)[0] >= records[shortest - 1].round
            x, (values,) = collect_curve([records], measure, axis)
            panel.plot(x[rest], values[rest], color=colour, linewidth=0.5, alpha=0.6)


def fit_to_lines(panel: Any) -> None:
    """Fit the axis to the lines, not to their intervals, which can be much wider."""
    heights = [y for line in panel.get_lines() for y in line.get_ydata()]
    low, high = min(heights, default=0.0), max(heights, default=1.0)
    room = 0.12 * (high - low) or 0.1
    panel.set_ylim(max(0.0, low - room) if low >= 0 else low - room, high + room)
