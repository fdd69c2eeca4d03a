"""The learning curves of a report: drawn for readers without JavaScript, and as numbers for the page's script."""

from __future__ import annotations

import html
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedlga.experiments.measures import format_metric, format_target, is_percentage, knows_costs, value_of
from fedlga.report.figures import (
    collect_curve,
    draw_band,
    fit_to_lines,
    mean_with_band,
    use_percent,
    use_whole_numbers,
)
from fedlga.report.groups import Group
from fedlga.report.headline import find_target
from fedlga.report.style import Style, as_pixels, choose_styles
from fedlga.report.svg import FAINT, draw_svg

AXES = {"rounds": "rounds", "seconds": "seconds on this machine", "simulated_seconds": "simulated seconds"}
COSTS = {"work_seconds": "device seconds", "megabytes": "megabytes sent"}  # axes, where it is known
MOST_BANDS = 4  # curves whose intervals are shaded: those of more would hide the curves
MOST_POINTS = 800  # of a curve in the page: more than a figure has pixels for
INK = "ink"  # a line in the page's text colour

Curve = dict[str, Any]  # x, y, and low and high of the interval, if there is one


def show_curves(groups: Sequence[Group]) -> tuple[str, dict[str, Any]]:
    """Return metrics and training loss over each axis, of which the page shows one at a time; and their numbers."""
    styles = list_styles(groups)
    measures = list_plotted(groups)
    axes = {**AXES, **(COSTS if all(knows_costs(run.records) for group in groups for run in group.runs) else {})}
    figures: list[dict[str, Any]] = []
    shown: list[str] = []
    for axis, name in axes.items():
        drawn = ""
        for measure, title in measures.items():
            figure = collect_figure(groups, measure, axis, title)
            place = f'data-figure="{len(figures)}"'
            drawn += f"<figure {place}><figcaption>{html.escape(title)}</figcaption>{_draw(figure, styles)}</figure>"
            figures.append(figure)
        heading = f'<h3 class="axis-name">over {html.escape(name)}</h3>'
        shown.append(f'<div class="axis grid" data-axis="{axis}">{heading}{drawn}</div>')
    switch = "".join(
        f'<label><input type="radio" name="axis" value="{axis}"{" checked" * (axis == "rounds")}> {title}</label>'
        for axis, title in axes.items()
    )
    note = (
        "Mean over the seeds, until the first of their runs ends (then each seed, thin); "
        f"shaded, for up to {MOST_BANDS} curves and from three seeds on: its 95 % interval."
    ) + (" The horizontal line is the target." if find_target(groups) is not None else "")
    how = "Point at a curve to read its values, drag to zoom, double-click to go back; click a name to hide its curve."
    section = (
        f'<section id="learning"><h2>Learning</h2><fieldset class="switch"><legend>over</legend>{switch}</fieldset>'
        f'{_make_legend(groups, styles)}{"".join(shown)}<p class=note>{note} <span class="scripted">{how}</span></p>'
        "</section>"
    )
    curves = [
        {"label": group.label, "colour": screen_colour(colour), "dash": as_pixels(dashes)}
        for group, (colour, dashes) in zip(groups, styles, strict=True)
    ]
    return section, {"curves": curves, "figures": figures}


def list_styles(groups: Sequence[Group]) -> list[Style]:
    """Return the colour and dashes of each group."""
    return choose_styles([(group.experiment.method, group.experiment.policy) for group in groups])


def list_plotted(groups: Sequence[Group]) -> dict[str, str]:
    """Return what is drawn, with its title: target metrics, training loss, and metrics on the slow devices' data."""
    targets = list(dict.fromkeys(group.experiment.target_metric for group in groups))
    measures = {metric: f"test {metric}" for metric in targets} | {"train_loss": "training loss"}
    for metric in targets:
        of_slow = f"{metric}_slow"
        if any(value_of(r, of_slow) is not None for group in groups for r in group.runs[0].records):
            measures[of_slow] = f"{metric} on the slow devices' data"
    return measures


def collect_figure(groups: Sequence[Group], measure: str, axis: str, title: str) -> dict[str, Any]:
    """Return one figure as plain values: what the page's script draws, and what is drawn for readers without it."""
    target = find_target(groups) if measure == groups[0].experiment.target_metric else None
    ends = "; ".join(f"{g.label} ends at {_end(g, measure)}" for g in groups)
    name = {**AXES, **COSTS}[axis]
    return {
        "title": title,
        "axis": name,
        "percent": is_percentage(measure),
        "target": target,
        "target_text": "" if target is None else f"target {format_target(measure, target)}",
        "text": f"{title} over {name}. {ends}.",
        "curves": [_collect(group, measure, axis) for group in groups],
    }


def _collect(group: Group, measure: str, axis: str) -> Curve:
    runs = [run.records for run in group.runs]
    x, values = collect_curve(runs, measure, axis)
    if not len(x):
        return {"x": [], "y": [], "low": None, "high": None, "seeds": []}
    mean, half = mean_with_band(values)
    kept = thin_out(mean)
    curve: Curve = {"x": _plain(x[kept]), "y": _plain(mean[kept]), "low": None, "high": None, "seeds": []}
    if half is not None:
        curve["low"], curve["high"] = _plain((mean - half)[kept]), _plain((mean + half)[kept])
    shortest = min(len(records) for records in runs)
    for records in runs:
        if len(records) > shortest:
            rest = collect_curve([records], measure)[0] >= records[shortest - 1].round
            seed_x, (seed_y,) = collect_curve([records], measure, axis)
            kept = thin_out(seed_y[rest])
            curve["seeds"].append({"x": _plain(seed_x[rest][kept]), "y": _plain(seed_y[rest][kept])})
    return curve


def thin_out(values: Any, most: int = MOST_POINTS) -> Any:
    """Return which values of a long curve to draw: the first, the last, the lowest and highest of every stretch."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    edges = np.linspace(0, count, most // 2 + 1).astype(int)
    stretches = [(a, values[a:b]) for a, b in itertools.pairwise(edges)]
    extremes = [a + at for a, part in stretches for at in (int(part.argmin()), int(part.argmax()))]
    return np.unique([0, *extremes, count - 1])


def _plain(values: Any) -> list[float | None]:
    """Return numbers for JSON, with as many digits as a figure can show; None for what is no finite number."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]


def _draw(figure: dict[str, Any], styles: Sequence[Style]) -> str:
    def draw(panel: Any) -> None:
        for curve, (colour, dashes) in zip(figure["curves"], styles, strict=True):
            if not curve["x"]:
                continue
            marker = "o" if len(curve["x"]) == 1 else None  # a line of one point is not visible
            panel.plot(curve["x"], _numbers(curve["y"]), color=colour, linestyle=dashes, linewidth=1.3, marker=marker)
            if curve["low"] is not None and len(styles) <= MOST_BANDS:
                draw_band(panel, curve["x"], _numbers(curve["low"]), _numbers(curve["high"]), colour)
            for seed in curve["seeds"]:
                panel.plot(seed["x"], _numbers(seed["y"]), color=colour, linewidth=0.5, alpha=0.6)
        fit_to_lines(panel)
        if figure["target"] is not None:
            low, high = panel.get_ylim()
            panel.axhline(figure["target"], color=FAINT, linewidth=0.8)
            panel.set_ylim(min(low, figure["target"]), max(high, figure["target"] + 0.02 * (high - low)))
            panel.annotate(figure["target_text"], (1, figure["target"]), xycoords=("axes fraction", "data"),
                           ha="right", va="top", fontsize=7)  # fmt: skip
        panel.set(xlabel=figure["axis"])
        if figure["axis"] == AXES["rounds"]:
            use_whole_numbers(panel.xaxis)
        if figure["percent"]:
            use_percent(panel.yaxis)
        panel.grid(visible=True, color=FAINT, linewidth=0.3, alpha=0.6)

    return draw_svg(draw, figure["text"])


def _numbers(values: Sequence[float | None]) -> Any:
    return np.array(values, dtype=float)


def _make_legend(groups: Sequence[Group], styles: Sequence[Style]) -> str:
    """Return the names of all curves, however many: outside the figures, where it hides nothing."""
    names = ""
    for index, (group, (colour, dashes)) in enumerate(zip(groups, styles, strict=True)):
        stroke = "currentColor" if screen_colour(colour) == INK else colour
        pattern = " ".join(f"{length:g}" for length in as_pixels(dashes))
        line = f'<line x1="0" y1="5" x2="34" y2="5" stroke="{stroke}" stroke-width="2" stroke-dasharray="{pattern}"/>'
        swatch = f'<svg class="swatch" viewBox="0 0 34 10" aria-hidden="true">{line}</svg>'
        names += f'<li data-curve="{index}">{swatch}{html.escape(group.label)}</li>'
    return f'<ul class="legend">{names}</ul>'


def screen_colour(colour: str) -> str:
    """Return a line's colour on a screen: black would not be seen in dark mode."""
    return INK if colour == "#000000" else colour


def _end(group: Group, measure: str) -> str:
    taken = [
        next((v for r in reversed(run.records) if (v := value_of(r, measure)) is not None), None) for run in group.runs
    ]
    known = [value for value in taken if value is not None]
    return format_metric(measure, sum(known) / len(known)) if known else "no value"
