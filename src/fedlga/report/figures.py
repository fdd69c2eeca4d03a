"""Figures of comparisons, of the paper's items, of reports. Colours and dashes mean the same everywhere."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .evidence import Estimate, t_quantile
from .types import Record

if TYPE_CHECKING:
    from .paper import Work

# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes and markers for those who print in grey.
POLICY_COLOURS = {"wait": "#0072B2", "drop": "#999999", "keep": "#E69F00", "complete": "#D55E00"}
POLICY_DASHES: dict[str, Any] = {
    "wait": (0, (6, 2)),
    "drop": (0, (1, 1.5)),
    "keep": (0, (4, 1.5, 1, 1.5)),
    "complete": "-",
}
METHOD_COLOURS = {
    "fedlga": "#D55E00",
    "fedavg": "#0072B2",
    "fedprox": "#E69F00",
    "fednova": "#009E73",
    "scaffold": "#CC79A7",
    "feddyn": "#56B4E9",
}
METHOD_DASHES: dict[str, Any] = {
    "fedlga": "-",
    "fedavg": (0, (6, 2)),
    "fedprox": (0, (4, 1.5, 1, 1.5)),
    "fednova": (0, (1, 1.5)),
    "scaffold": (0, (8, 2, 1, 2, 1, 2)),
    "feddyn": (0, (3, 1.2)),
}
METHOD_MARKERS = {"fedlga": "o", "fedavg": "s", "fedprox": "D", "fednova": "^", "scaffold": "v", "feddyn": "P"}
METHOD_NAMES = {
    "fedlga": "FedLGA",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "scaffold": "Scaffold",
    "feddyn": "FedDyn",
}
COLUMN = 3.5  # inches: a column of a paper
MOST_METHODS = 6  # panels in a figure

Curves = Mapping[tuple[str, str], Sequence[Sequence[Record]]]  # method and policy -> a run's records for each seed


def accuracy_over_time(curves: Curves, target: float, files: Sequence[Path]) -> None:
    """Accuracy over simulated seconds, a line a policy, a row of panels a method; shaded is one standard deviation.

    Where some devices are always slow, a second column shows the accuracy on data like theirs.
    """
    plt = pyplot()
    methods = list(dict.fromkeys(method for method, _ in curves))[:MOST_METHODS]
    slow = any(r.accuracy_slow is not None for runs in curves.values() for records in runs for r in records)
    measures = {"accuracy": "test accuracy", **({"accuracy_slow": "on the slow devices' data"} if slow else {})}
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
                    seconds, values = over(runs, measure, "simulated_seconds")
                    mean = values.mean(0)
                    colour, dashes = POLICY_COLOURS[policy], POLICY_DASHES[policy]
                    panel.plot(seconds, mean, color=colour, linestyle=dashes, linewidth=1.6, label=policy)
                    tails(panel, runs, measure, colour, "simulated_seconds")
                    if len(values) > 1:
                        spread = values.std(0, ddof=1)
                        panel.fill_between(seconds, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
            panel.axhline(target, color="#444444", linewidth=0.6)
            panel.set_title(f"{method}: {title}" if len(methods) > 1 else title, fontsize=9, loc="left")
            panel.set_xlabel("simulated seconds", fontsize=8)
            panel.set_ylim(0, 1)
            panel.tick_params(labelsize=8)
            panel.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes[0][0].legend(fontsize=8, loc="lower right", frameon=False)
    for file in files:
        figure.savefig(file, dpi=160)
    plt.close(figure)


def pyplot() -> Any:
    """matplotlib without a window."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    return plt


@contextmanager
def figure(files: Sequence[Path], columns: int = 1, width: float = COLUMN, height: float = 2.4) -> Generator[Any]:
    """Panels to draw on; at the end they are written to the files, whatever their kind."""
    plt = pyplot()
    fonts = {"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "svg.fonttype": "none", "pdf.fonttype": 42}
    with plt.rc_context({**fonts, "svg.hashsalt": "fedlga"}):  # so that the same figure is the same file
        made, panels = plt.subplots(1, columns, figsize=(width, height), squeeze=False, layout="constrained")
        for panel in panels.flat:
            panel.grid(visible=True, color="#dddddd", linewidth=0.5)
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
        yield panels
        for file in files:
            dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(file.suffix)
            made.savefig(file, dpi=200, metadata=dates)
        plt.close(made)


def look(method: str, policy: str = "") -> tuple[str, Any]:
    """Colour and dashes of a method, or of a policy where that is what is compared."""
    if policy:
        return POLICY_COLOURS[policy], POLICY_DASHES[policy]
    return METHOD_COLOURS.get(method, "#000000"), METHOD_DASHES.get(method, "-")


def banded(panel: Any, x: Any, runs: Any, style: tuple[str, Any], label: str) -> None:
    """A mean line over seeds; shaded, its 95 % interval, from three seeds on: that of two is wider than any figure."""
    colour, dashes = style
    values = np.asarray(runs, dtype=float)
    mean = values.mean(0)
    marker = "o" if len(x) == 1 else None  # a line of one point is none
    panel.plot(x, mean, color=colour, linestyle=dashes, linewidth=1.3, label=label, marker=marker)
    if len(values) > 2:  # noqa: PLR2004
        half = t_quantile(len(values)) * values.std(0, ddof=1) / len(values) ** 0.5
        panel.fill_between(x, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)


def over(runs: Sequence[Sequence[Record]], measure: str, axis: str = "rounds") -> tuple[Any, Any]:
    """Where a measure was taken (rounds, seconds or simulated seconds, the mean over seeds), and its values by seed."""
    shortest = min(len(records) for records in runs)
    taken = [i for i in range(shortest) if all(getattr(records[i], measure) is not None for records in runs)]
    if axis == "rounds":
        x = np.array([runs[0][i].round for i in taken])
    else:
        spent = np.array([np.cumsum([getattr(r, axis) for r in records[:shortest]]) for records in runs]).mean(0)
        x = spent[taken]
    return x, np.array([[getattr(records[i], measure) for i in taken] for records in runs], dtype=float)


def tails(panel: Any, runs: Sequence[Sequence[Record]], measure: str, colour: str, axis: str = "rounds") -> None:
    """Where the first of the seeds' runs has ended there is no mean any more: the others go on by themselves, thin."""
    shortest = min(len(records) for records in runs)
    for records in runs:
        if len(records) > shortest:
            rest = over([records], measure)[0] >= records[shortest - 1].round
            x, (values,) = over([records], measure, axis)
            panel.plot(x[rest], values[rest], color=colour, linewidth=0.5, alpha=0.6)


def draw_item(work: Work, files: Sequence[Path]) -> None:
    """The figure of one of the paper's items."""
    drawings = {
        "curves": _curves,
        "bars": _bars,
        "sweep": _sweep,
        "runtime": _runtime,
        "time": _time,
        "audit": _audit,
    }
    drawings[work.item.kind](work, files)


def _curves(work: Work, files: Sequence[Path]) -> None:
    with figure(files) as ((panel,),):
        for method, policy in work.kinds:
            if runs := work.records(method, policy):
                x, values = over(runs, work.item.measure)
                banded(panel, x, values, look(method), METHOD_NAMES[method])
                tails(panel, runs, work.item.measure, look(method)[0])
        if work.item.measure == "accuracy":
            panel.axhline(work.setting.base.target, color="#444444", linewidth=0.6)
        within(panel)
        panel.set(xlabel="rounds", ylabel="test accuracy" if work.item.measure == "accuracy" else "training loss")
        panel.legend(frameon=False, ncols=2)


def _time(work: Work, files: Sequence[Path]) -> None:
    with figure(files) as ((panel,),):
        for method, policy in work.kinds:
            if runs := work.records(method, policy):
                x, values = over(runs, "accuracy", "simulated_seconds")
                banded(panel, x, values, look(method, policy), policy)
                tails(panel, runs, "accuracy", look(method, policy)[0], "simulated_seconds")
        panel.axhline(work.setting.base.target, color="#444444", linewidth=0.6)
        within(panel)
        panel.set(xlabel="simulated seconds", ylabel="test accuracy")
        panel.legend(frameon=False)


def within(panel: Any) -> None:
    """Show the lines, not all of their intervals: with two seeds those are six times as wide as the curves are high."""
    heights = [y for line in panel.get_lines() for y in line.get_ydata()]
    low, high = min(heights, default=0.0), max(heights, default=1.0)
    room = 0.12 * (high - low) or 0.1
    panel.set_ylim(max(0.0, low - room), high + room)


def _bars(work: Work, files: Sequence[Path]) -> None:
    with figure(files) as ((panel,),):
        _bar(panel, work, "best_accuracy", "best accuracy")
        seen = [v for row in work.found if (v := row["best_accuracy"]) is not None]
        panel.set_ylim(max(0.0, min(seen, default=0.0) - 0.05), min(1.0, max(seen, default=1.0) + 0.03))


def _runtime(work: Work, files: Sequence[Path]) -> None:
    with figure(files, columns=2, width=2 * COLUMN) as ((single, total),):
        _bar(single, work, "seconds_per_round", "seconds a round")
        _bar(total, work, "seconds_to_target", "seconds to the target")


HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---")


def _bar(panel: Any, work: Work, measure: str, title: str) -> None:
    for index, (method, policy) in enumerate(work.kinds):
        seen = Estimate.of(list(work.values(measure, method, policy).values()))
        if seen.mean is not None:
            style = {"color": METHOD_COLOURS[method], "hatch": HATCHES[index % len(HATCHES)], "edgecolor": "white"}
            panel.bar(METHOD_NAMES[method], seen.mean, yerr=seen.half, capsize=2, linewidth=0, **style)
        else:
            panel.bar(METHOD_NAMES[method], 0.0)
            panel.annotate(seen.text(), (METHOD_NAMES[method], 0), ha="center", va="bottom", fontsize=6)
    panel.set_ylabel(title)
    panel.set_ylim(bottom=0)
    panel.grid(visible=False, axis="x")
    panel.tick_params(axis="x", labelrotation=30)


def _sweep(work: Work, files: Sequence[Path]) -> None:
    """Rounds to the target over what is varied; an open marker: some seeds never reached it."""
    with figure(files) as ((panel,),):
        positions = range(len(work.points))
        for index, (method, policy) in enumerate(work.kinds):
            colour, dashes = look(method)
            aside = 0.05 * (index - (len(work.kinds) - 1) / 2)  # so that intervals do not hide each other
            x, y, errors, open_x, open_y = list[float](), list[float](), list[float](), list[float](), list[float]()
            for position, point in zip((p + aside for p in positions), work.points, strict=True):
                values = list(work.values("rounds_to_target", method, policy, point).values())
                seen = Estimate.of(values)
                if seen.mean is not None:
                    x, y, errors = [*x, position], [*y, seen.mean], [*errors, seen.half or 0.0]
                elif values:
                    at_least = [work.limit(point) if v is None else v for v in values]
                    open_x, open_y = [*open_x, position], [*open_y, float(np.mean(at_least))]
            marker = METHOD_MARKERS[method]
            label = METHOD_NAMES[method]
            panel.errorbar(
                x, y, errors, color=colour, linestyle=dashes, marker=marker, ms=3.5, lw=1.2, capsize=2, label=label
            )
            panel.plot(open_x, open_y, color=colour, marker=marker, ms=4.5, mfc="white", linestyle="")
        panel.set_xticks(list(positions), [f"{point.value:g}" for point in work.points])
        panel.set(xlabel=work.item.axis, ylabel=f"rounds to {work.setting.base.target:.0%}")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False, ncols=2)


def _audit(work: Work, files: Sequence[Path]) -> None:
    with figure(files) as ((panel,),):
        method, policy = work.kinds[0]
        for index, point in enumerate(work.points):
            seen, best = (
                Estimate.of(list(work.values(measure, method, policy, point).values()))
                for measure in ("approximation_error", "best_scale_error")
            )
            if seen.mean is None or best.mean is None:
                continue
            panel.bar(
                index, seen.mean, yerr=seen.half, capsize=2, color="#D55E00", label="completed" if not index else None
            )
            panel.plot(
                index, best.mean, "D", color="#000000", ms=4, label="best possible multiple" if not index else None
            )
        panel.axhline(1, color="#444444", linewidth=0.8)
        panel.annotate("as sent", (len(work.points) - 0.5, 1), ha="right", va="bottom", fontsize=7)
        panel.set_xticks(range(len(work.points)), [str(point.value) for point in work.points], rotation=25, ha="right")
        panel.set(ylabel="distance to the true updates", ylim=(0, max(1.15, panel.get_ylim()[1])))
        panel.grid(visible=False, axis="x")
        panel.legend(loc="lower left", facecolor="white", edgecolor="white", framealpha=0.9)
