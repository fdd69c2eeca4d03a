"""One HTML page about runs: everything in one file, nothing is fetched, and nothing but its own scripts runs in it.

The figures are matplotlib's, as SVG inside the page. Where JavaScript is on, curves that can be pointed at, hidden and
zoomed take their place. Every figure has a text that says what it shows.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

from fedlga.experiments.labels import describe_all, list_settings
from fedlga.experiments.measures import Measure, format_target, list_measures
from fedlga.experiments.records import read_versions
from fedlga.report.curves import show_curves
from fedlga.report.devices import show_errors, show_partition, show_slow
from fedlga.report.groups import Group, collect_runs
from fedlga.report.headline import find_target, make_headline

__all__ = ["Group", "collect_runs", "make_headline", "make_page"]

WEB = Path(__file__).with_name("web")
MOST_NAMED = 4  # names in a title or sentence; of more, only the number is said


def make_page(groups: Sequence[Group]) -> str:
    """Return the page."""
    template = Template(read_asset("page.html"))
    learning, numbers = show_curves(groups)
    slow = "".join(show_slow(group) for group in groups)
    slow = f'<section><h2>Who was slow, and what became of it</h2><div class="grid">{slow}</div></section>'
    parts = [learning, _table(groups), slow, show_errors(groups), show_partition(groups[0])]
    details = "".join(_experiment(group) for group in groups)
    library = f"/*! {read_asset('uplot/LICENSE')} */\n{read_asset('uplot/uPlot.iife.min.js')}"
    scripts = [library, read_asset("charts.js"), read_asset("report.js")]
    return template.substitute(
        policy=_make_policy(scripts),
        style=read_asset("uplot/uPlot.min.css") + read_asset("style.css"),
        title=html.escape(
            f"{_list_names([g.experiment.subject for g in groups])}: "
            f"{_list_names([g.label for g in groups], 'experiments')}"
        ),
        headline=html.escape(make_headline(groups)),
        intro=html.escape(_intro(groups)),
        body="\n".join(part for part in parts if part),
        details=details,
        versions=html.escape(_versions(groups)),
        numbers=_embed_json(numbers),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def read_asset(name: str) -> str:
    """Return a file that pages are made of."""
    return (WEB / name).read_text(encoding="utf-8")


def _make_policy(scripts: Sequence[str]) -> str:
    """Return what a browser may do with the page: run these scripts, and nothing else."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _embed_json(values: Any) -> str:
    """Return JSON that can stand in a page: no text in it can end its element."""
    return json.dumps(values, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _intro(groups: Sequence[Group]) -> str:
    seeds = max(len(group.runs) for group in groups)
    each = len({len(group.runs) for group in groups}) == 1
    many = f"{seeds} seeds each" if seeds > 1 and each else f"up to {seeds} seeds" if seeds > 1 else "one seed"
    runs = sum(len(group.runs) for group in groups)
    return f"{describe_all([group.experiment for group in groups])}; {runs} run{'s' * (runs > 1)}, {many}."


def _list_names(names: Sequence[Any], plural: str = "") -> str:
    """Return different names, separated by commas; of many, how many there are, if there is a word for it."""
    different = list(dict.fromkeys(str(name) for name in names))
    return f"{len(different)} {plural}" if plural and len(different) > MOST_NAMED else ", ".join(different)


def _table(groups: Sequence[Group]) -> str:
    names = dict.fromkeys(group.experiment.target_metric for group in groups)
    by_name = {m.name: m for name in names for m in list_measures(name) if m.in_report}
    measures = [
        m for m in by_name.values() if any(run.summary.get(m.name) is not None for g in groups for run in g.runs)
    ]
    head = "".join(f"<th scope=col>{html.escape(m.title)}</th>" for m in measures)
    rows = ""
    for group in groups:
        cells = "".join(f"<td>{html.escape(_cell(group, m))}</td>" for m in measures)
        rows += f"<tr><th scope=row>{html.escape(group.label)}</th>{cells}</tr>"
    note = "Mean ± half of its 95 % interval over the seeds, from three seeds on. At the end: mean of ten evaluations."
    if any(m.to_target for m in measures):
        target = find_target(groups)
        goal = "their targets" if target is None else format_target(groups[0].experiment.target_metric, target)
        note += f" Rounds and seconds: to {goal}; 'k of n': only k of n seeds reached it, so there is no mean."
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<section><h2>Numbers</h2><div class="wide">{table}</div><p class=note>{note}</p></section>'


def _cell(group: Group, measure: Measure) -> str:
    """Return a mean; how many seeds reached the target; or '-', if it was not measured or there is no target."""
    estimate = group.estimate(measure.name)
    counts = measure.to_target and group.experiment.target is not None
    return "-" if estimate.mean is None and not counts else estimate.text(measure.format)


def _experiment(group: Group) -> str:
    rows = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in list_settings(group.experiment.resolved()).items()
    )
    seeds = ", ".join(str(run.experiment.seed) for run in group.runs)
    title = html.escape(f"{group.label}, seeds {seeds}")
    return f'<details><summary>{title}</summary><div class="wide"><table class="plain">{rows}</table></div></details>'


def _versions(groups: Sequence[Group]) -> str:
    used = {tuple(read_versions(run.folder).items()) for group in groups for run in group.runs}
    return "; ".join(" ".join(f"{name} {version}" for name, version in versions) for versions in sorted(used))
