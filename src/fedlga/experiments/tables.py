"""The table of a comparison as text: the cells, and Markdown or LaTeX of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import Measure, format_target, list_measures
from fedlga.experiments.statistics import format_half

Row = Mapping[str, Any]
NOTE = "mean ± half of the 95 % interval over the seeds (from three seeds on)"
_LATEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"},
}


def has_targets(rows: Sequence[Row]) -> bool:
    """Return whether the rows of a comparison are about a target."""
    return any("reached" in row for row in rows)


def list_end_measures(rows: Sequence[Row], metric: str) -> list[Measure]:
    """Return what says how runs ended; none unless some devices are always slow, or updates were audited."""
    measures = [m for m in list_measures(metric) if m.table == "end" and any(row[m.name] is not None for row in rows)]
    shown = {f"last_{metric}_slow", "approximation_error"} & {m.name for m in measures}
    return measures if shown else []


def list_target_measures(rows: Sequence[Row], metric: str) -> list[Measure]:
    """Return what says how good runs were, and how soon they reached a target, if there is one."""
    has_target = has_targets(rows)
    measures = [m for m in list_measures(metric) if m.table == "target" and (has_target or not m.to_target)]
    if not has_target and not list_end_measures(rows, metric):  # nothing else shows them
        measures += [m for m in list_measures(metric) if m.name in (f"last_{metric}", "simulated_seconds")]
    return measures


def format_arm(row: Row) -> str:
    """Return an arm's policy, and its settings if it has any of its own."""
    return " ".join(filter(None, (row["stragglers"], row["settings"])))


def format_spread(row: Row, measure: Measure) -> str:
    """Return a mean over the seeds and half of its 95 % interval."""
    mean, half = row[measure.name], row[f"{measure.name}_half"]
    if mean is None:
        return "never" if measure.to_target and row["seeds"] and row["reached"] is not None else "-"
    return measure.text(mean) + ("" if half is None else f" ±{format_half(half, measure.format)}")


def make_cells(rows: Sequence[Row], e: Experiment, metric: str) -> list[list[str]]:
    """Return the whole table of a comparison as text: a line of titles, then one for each arm."""
    targets = list_target_measures(rows, metric)
    ends = [m for m in list_end_measures(rows, metric) if m not in targets]
    goal = "target" if e.target is None else format_target(metric, e.target)
    titles = [m.title if not m.to_target else f"{m.title} to {goal}" for m in targets] + [m.title for m in ends]
    reached = ["reached"] if has_targets(rows) else []
    cells = [["method", "stragglers", "seeds", *reached, *titles]]
    for row in rows:
        count = [] if not reached else ["-" if row["reached"] is None else f"{row['reached']} of {row['seeds']}"]
        values = [format_spread(row, m).replace(" ±", " ± ") for m in (*targets, *ends)]
        cells.append([row["method"], format_arm(row), str(row["seeds"]), *count, *values])
    return cells


def format_markdown(cells: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in cells]
    lines.insert(1, f"|{'|'.join(['---', '---', *['---:'] * (len(cells[0]) - 2)])}|")
    return "\n".join([*lines, "", f"{NOTE[0].upper()}{NOTE[1:]}."]) + "\n"


def format_latex(cells: Sequence[Sequence[str]]) -> str:
    """Return a table in LaTeX, with the rules of the package booktabs."""
    head, *body = (" & ".join(_escape(cell) for cell in line) + r" \\" for line in cells)
    columns = "ll" + "r" * (len(cells[0]) - 2)
    lines = [f"% {NOTE}; needs \\usepackage{{booktabs}}", f"\\begin{{tabular}}{{{columns}}}", r"\toprule", head]
    return "\n".join([*lines, r"\midrule", *body, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
