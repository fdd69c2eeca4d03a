"""One HTML page about runs: everything in one file, nothing is fetched.

The figures are matplotlib's, as SVG inside the page; their lines take the page's text colour, so that they follow light
and dark mode. Every figure has a text that says what it shows.
"""

from __future__ import annotations

import html
import io
import os
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import (
    Measure,
    format_metric,
    format_target,
    knows_costs,
    list_measures,
    metric_format,
    value_of,
)
from fedlga.experiments.records import EXPERIMENT, Run, read_partition, read_run, read_versions
from fedlga.experiments.statistics import Estimate
from fedlga.report.figures import (
    Style,
    collect_curve,
    draw_remaining_seeds,
    draw_with_interval,
    fit_to_lines,
    load_pyplot,
    method_style,
    policy_style,
)
from fedlga.report.style import METHOD_COLOURS, METHOD_DASHES, METHOD_NAMES

AXES = {"rounds": "rounds", "seconds": "seconds on this machine", "simulated_seconds": "simulated seconds"}
COSTS = {"work_seconds": "seconds that devices worked", "megabytes": "megabytes sent"}  # axes, where it is known
INK = "#010203"  # replaced by the page's text colour
FAINT = "#010204"
NOT_ASKED, NOTHING, DROPPED, KEPT, COMPLETED, FINISHED = range(6)
STATES = {
    FINISHED: ("finished", "#0072B2"),
    COMPLETED: ("completed", "#D55E00"),
    KEPT: ("kept unfinished", "#E69F00"),
    DROPPED: ("thrown away", "#999999"),
    NOTHING: ("sent nothing", "#CC79A7"),
}
MOST_DEVICES, MOST_ROUNDS = 100, 400  # in the picture of who was slow
MOST_NAMED = 8  # lines in a figure with a legend


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed."""

    label: str
    runs: Sequence[Run]

    @property
    def experiment(self) -> Experiment:
        """The experiment of the first seed."""
        return self.runs[0].experiment

    @property
    def unfinished(self) -> int:
        """The number of runs that are not over."""
        return sum(not run.summary["finished"] for run in self.runs)

    def estimate(self, measure: str) -> Estimate:
        """Return the mean of a measure over the seeds."""
        return Estimate.of([run.summary.get(measure) for run in self.runs])


def collect_runs(folders: Sequence[Path]) -> list[Group]:
    """Return the runs in these folders and below, grouped by experiment."""
    runs: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(f"DIR: {str(folder)!r} is no folder; it takes those of runs or comparisons")
        here = (folder / EXPERIMENT).exists()
        read = [read_run(run_folder) for run_folder in ([folder] if here else _find_run_folders(folder))]
        runs |= {run.folder.resolve(): run for run in read if run.records}
        if not any(run.records for run in read):
            raise BadInput(f"DIR: {str(folder)!r} holds no run with a finished round")
    together: dict[str, list[Run]] = {}
    for run in runs.values():
        members = together.setdefault(run.experiment.resolved().changed({"seed": 0}).to_toml(), [])
        same = next((i for i, other in enumerate(members) if other.experiment.seed == run.experiment.seed), None)
        if same is None:
            members.append(run)
        elif len(run.records) > len(members[same].records):  # the same run twice counts once: the longer one
            members[same] = run
    labels = _labels([members[0].experiment.resolved() for members in together.values()])
    return [Group(label, members) for label, members in zip(labels, together.values(), strict=True)]


def _find_run_folders(folder: Path) -> list[Path]:
    """Return all run folders below one. Runs may be going on: os.walk tolerates folders that vanish, rglob does not."""
    return sorted(Path(path) for path, _, files in os.walk(folder) if EXPERIMENT in files)


def _labels(experiments: Sequence[Experiment]) -> list[str]:
    """Return method and policy of each, and the settings in which they differ."""
    settings = [_flatten(e) for e in experiments]
    names = {name for values in settings for name in values} - {"seed", "method", "stragglers"}
    differ = sorted(name for name in names if len({repr(v[name]) for v in settings if name in v}) > 1)
    return [
        ", ".join([f"{_name(e.method)} ({e.policy})", *(f"{name} {v[name]}" for name in differ if name in v)])
        for e, v in zip(experiments, settings, strict=True)
    ]


def _flatten(e: Experiment) -> dict[str, Any]:
    """Return all settings in one dict; those of the method and policy with their owner's name."""
    own = {name: value for name, value in e.as_dict().items() if name != "options"}
    by_name = {e.method, e.policy}
    options = {
        f"{owner}.{name}" if owner in by_name else name: value
        for owner, values in e.options.items()
        for name, value in values.items()
    }
    return options | own


def _name(method: str) -> str:
    return METHOD_NAMES.get(method, method)


def make_page(groups: Sequence[Group]) -> str:
    """Return the page."""
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    first = groups[0].experiment
    slow = "".join(_who_was_slow(group) for group in groups)
    slow = f'<section><h2>Who was slow, and what became of it</h2><div class="grid">{slow}</div></section>'
    parts = [_curves(groups), _table(groups), slow, _errors(groups), _partition(groups[0])]
    details = "".join(_experiment(group) for group in groups)
    return template.substitute(
        title=html.escape(f"{first.subject}: {', '.join(group.label for group in groups)}"),
        headline=html.escape(make_headline(groups)),
        intro=html.escape(_intro(groups)),
        body="\n".join(part for part in parts if part),
        details=details,
        versions=html.escape(_versions(groups)),
    )


def make_headline(groups: Sequence[Group]) -> str:
    """Return what happened, in a sentence."""
    metric = groups[0].experiment.target_metric
    all_over = not any(g.unfinished for g in groups)
    seeds = {tuple(sorted(run.experiment.seed for run in g.runs)) for g in groups}
    if _target(groups) is None or not all_over or len(seeds) > 1:  # they cannot be compared
        return "; ".join(_describe(group) for group in groups) + "."
    if len(groups) == 1:
        return _describe(groups[0]) + "."
    reached = [g for g in groups if g.estimate("rounds_to_target").mean is not None]
    goal = format_target(metric, _target(groups))
    if not reached:
        known = [g for g in groups if g.estimate(f"best_{metric}").mean is not None]
        if not known:
            return f"None reached {goal} on every seed."
        choose = min if groups[0].experiment.better == "lower" else max
        best = choose(known, key=lambda g: g.estimate(f"best_{metric}").mean or 0.0)
        value = format_metric(metric, best.estimate(f"best_{metric}").mean)
        return f"None reached {goal} on every seed; {best.label} came closest, with {value}."
    by_rounds = min(reached, key=lambda g: g.estimate("rounds_to_target").mean or 0.0)
    by_time = min(reached, key=lambda g: g.estimate("simulated_seconds_to_target").mean or 0.0)
    rounds = by_rounds.estimate("rounds_to_target").text()
    text = f"{by_rounds.label} reached {goal} in the fewest rounds, {rounds}"
    seconds = by_time.estimate("simulated_seconds_to_target")
    if by_time is by_rounds:
        return f"{text}, and in the least simulated time, {seconds.text()} s."
    return f"{text}; {by_time.label} in the least simulated time, {seconds.text()} s."


def _target(groups: Sequence[Group]) -> float | None:
    """Return the target, if it is the same for all."""
    target = groups[0].experiment.target
    goals = {(g.experiment.subject, g.experiment.target_metric, g.experiment.target) for g in groups}
    return target if len(goals) == 1 else None


def _describe(group: Group) -> str:
    rounds, metric = group.estimate("rounds_to_target"), group.experiment.target_metric
    best, goal = group.estimate(f"best_{metric}"), format_target(metric, group.experiment.target)
    value = "" if best.mean is None else f"best {metric} {best.text(metric_format(metric))}"
    ending = f"; {value}" if value else ""
    if group.unfinished:
        return f"{group.label} is not over: {group.unfinished} of {len(group.runs)} runs stopped early{ending}"
    if group.experiment.target is None:
        return f"{group.label}: {value or 'nothing was measured'}"
    if rounds.mean is None:
        of = f" on {rounds.censored} of {rounds.count} seeds" if rounds.count > 1 else ""
        return f"{group.label} did not reach {goal}{of}{ending}"
    seconds = group.estimate("simulated_seconds_to_target").text()
    return f"{group.label} reached {goal} after {rounds.text()} rounds and {seconds} simulated seconds{ending}"


def _intro(groups: Sequence[Group]) -> str:
    e, seeds = groups[0].experiment, max(len(group.runs) for group in groups)
    each = len({len(group.runs) for group in groups}) == 1
    many = f"{seeds} seeds each" if seeds > 1 and each else f"up to {seeds} seeds" if seeds > 1 else "one seed"
    return (
        f"{e.subject} on {e.devices} devices, {e.cohort} a round, {e.describe_fleet()}; "
        f"{'' if e.task else f'model {e.model}; '}{sum(len(group.runs) for group in groups)} runs, {many}."
    )


# Figures.


def _svg(draw: Callable[[Any], None], text: str, height: float = 2.6, width: float = 4.4) -> str:
    """Return a figure in the page's text colour, with a text for those who cannot see it."""
    plt = load_pyplot()
    style = {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "fedlga", "text.color": INK, "legend.fontsize": 7}
    style |= {"axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    with plt.rc_context(style):
        figure, panel = plt.subplots(figsize=(width, height), layout="constrained")
        panel.spines[["top", "right"]].set_visible(False)
        draw(panel)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    drawn = file.getvalue()[file.getvalue().index("<svg") :]
    drawn = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", drawn, count=1)
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    label = html.escape(text, quote=True)
    # Several figures in a page: their ids must differ.
    own = f"f{zlib.crc32(text.encode()):08x}-"
    drawn = re.sub(r'(id="|url\(#|href="#)', lambda match: match[1] + own, drawn)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _style(groups: Sequence[Group], group: Group) -> Style:
    """Return the style by method if several are compared, by policy if one is; else each group has its own."""
    e, methods = group.experiment, {g.experiment.method for g in groups}
    kinds = [(g.experiment.method, g.experiment.policy) for g in groups]
    if len(set(kinds)) < len(kinds) or any(method not in METHOD_NAMES for method in methods):
        index = [g.label for g in groups].index(group.label)
        colours, dashes = list(METHOD_COLOURS.values()), list(METHOD_DASHES.values())
        return colours[index % len(colours)], dashes[(index + index // len(colours)) % len(dashes)]
    if len(methods) == 1 and len(groups) > 1:
        return policy_style(e.policy)
    colour, dashes = method_style(e.method)
    policies = {g.experiment.policy for g in groups if g.experiment.method == e.method}
    return colour, policy_style(e.policy)[1] if len(policies) > 1 else dashes


def _curves(groups: Sequence[Group]) -> str:
    """Return metrics and training loss over each axis, of which the page shows one at a time."""
    targets = list(dict.fromkeys(group.experiment.target_metric for group in groups))
    measures = {metric: f"test {metric}" for metric in targets} | {"train_loss": "training loss"}
    for metric in targets:
        of_slow = f"{metric}_slow"
        if any(value_of(r, of_slow) is not None for group in groups for r in group.runs[0].records):
            measures[of_slow] = f"{metric} on the slow devices' data"
    shown: list[str] = []
    axes = {**AXES, **(COSTS if all(knows_costs(run.records) for group in groups for run in group.runs) else {})}
    for axis in axes:
        figures = "".join(_curve(groups, measure, axis, title) for measure, title in measures.items())
        shown.append(f'<div class="axis grid" data-axis="{axis}">{figures}</div>')
    switch = "".join(
        f'<label><input type="radio" name="axis" value="{axis}"{" checked" * (axis == "rounds")}> {title}</label>'
        for axis, title in axes.items()
    )
    note = (
        "Mean over the seeds, until the first of their runs ends (then each seed, thin); "
        "shaded, from three seeds on: its 95 % interval."
    ) + (" The horizontal line is the target." if _target(groups) is not None else "")
    return (
        f'<section><h2>Learning</h2><fieldset class="switch"><legend>over</legend>{switch}</fieldset>'
        f"{''.join(shown)}<p class=note>{note}</p></section>"
    )


def _curve(groups: Sequence[Group], measure: str, axis: str, title: str) -> str:
    name = {**AXES, **COSTS}[axis]

    def draw(panel: Any) -> None:
        for group in groups:
            x, values = collect_curve([run.records for run in group.runs], measure, axis)
            if len(x):
                draw_with_interval(panel, x, values, _style(groups, group), group.label)
                records = [run.records for run in group.runs]
                draw_remaining_seeds(panel, records, measure, _style(groups, group)[0], axis)
        if measure == groups[0].experiment.target_metric and (target := _target(groups)) is not None:
            panel.axhline(target, color=FAINT, linewidth=0.8)
        fit_to_lines(panel)
        panel.set(xlabel=name, ylabel=title)
        panel.grid(visible=True, color=FAINT, linewidth=0.3, alpha=0.6)
        if len(groups) <= MOST_NAMED:
            panel.legend(frameon=False)

    ends = "; ".join(f"{g.label} ends at {_end(g, measure)}" for g in groups)
    return f"<figure>{_svg(draw, f'{title} over {name}. {ends}.')}</figure>"


def _end(group: Group, measure: str) -> str:
    taken = [[value for r in run.records if (value := value_of(r, measure)) is not None] for run in group.runs]
    known = [values[-1] for values in taken if values]
    if not known:
        return "no value"
    mean = sum(known) / len(known)
    return format_metric(measure, mean)


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
    note = "Mean and 95 % interval over the seeds. At the end: mean of the last ten evaluations."
    if any(m.to_target for m in measures):
        target = _target(groups)
        goal = "their targets" if target is None else format_target(groups[0].experiment.target_metric, target)
        note += f" Rounds and seconds: to {goal}; 'k of n': only k of n seeds reached it, so there is no mean."
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<section><h2>Numbers</h2><div class="wide">{table}</div><p class=note>{note}</p></section>'


def _cell(group: Group, measure: Measure) -> str:
    """Return a mean; how many seeds reached the target; or '-', if it was not measured or there is no target."""
    estimate = group.estimate(measure.name)
    counts = measure.to_target and group.experiment.target is not None
    return "-" if estimate.mean is None and not counts else estimate.text(measure.format)


def find_states(run: Run) -> tuple[Any, list[int]]:
    """Return what became of every device's work, devices x rounds; and which devices these are."""
    records = run.records[:MOST_ROUNDS]
    devices = sorted({device for record in records for device in record.devices})[:MOST_DEVICES]
    row = {device: index for index, device in enumerate(devices)}
    states = np.full((len(devices), len(records)), NOT_ASKED)
    for column, r in enumerate(records):
        used, completed = set(r.used), set(r.scales)
        for device, steps, asked in zip(r.devices, r.steps, r.steps_asked, strict=True):
            if device not in row:
                continue
            if steps == 0:
                state = NOTHING
            elif device not in used:
                state = DROPPED
            elif device in completed:
                state = COMPLETED
            else:
                state = FINISHED if steps >= asked else KEPT
            states[row[device], column] = state
    return states, devices


def _who_was_slow(group: Group) -> str:
    run = group.runs[0]
    states, devices = find_states(run)
    counts = {name: int((states == state).sum()) for state, (name, _) in STATES.items()}
    present = {state: (name, colour) for state, (name, colour) in STATES.items() if counts[name]}

    def draw(panel: Any) -> None:
        from matplotlib.colors import to_rgba
        from matplotlib.patches import Patch

        picture = np.zeros((*states.shape, 4))
        for state, (_, colour) in present.items():
            picture[states == state] = to_rgba(colour)
        panel.imshow(
            picture, aspect="auto", interpolation="nearest", extent=(0.5, states.shape[1] + 0.5, len(devices), 0)
        )
        panel.set(xlabel="round", ylabel="device" if devices == list(range(len(devices))) else "devices that took part")
        handles = [Patch(color=colour, label=name) for name, colour in present.values()]
        panel.legend(handles=handles, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))

    times = ", ".join(f"{count} times {name}" for name, count in counts.items() if count)
    text = f"What became of the work of {len(devices)} devices in {states.shape[1]} rounds: {times}."
    figure = _svg(draw, f"{group.label}. {text}", height=min(1.4 + 0.04 * len(devices), 5.0))
    note = html.escape(f"{text} {_completion(group)} Seed {run.experiment.seed}.")
    return f"<div><h3>{html.escape(group.label)}</h3><figure>{figure}</figure><p class=note>{note}</p></div>"


def _completion(group: Group) -> str:
    scales = [s for run in group.runs for r in run.records for s in r.scales.values() if s is not None]
    if not scales:
        return ""
    median = float(np.median(scales))
    return f"Completed updates were multiplied by {min(scales):.2f} to {max(scales):.2f}, median {median:.2f}."


def _errors(groups: Sequence[Group]) -> str:
    """Return the approximation error over rounds, if it was measured."""
    audited = [g for g in groups if any(r.audit and r.audit.get("error") is not None for r in g.runs[0].records)]
    if not audited:
        return ""

    def draw(panel: Any) -> None:
        for group in audited:
            rounds = [
                (r.round, r.audit["error"]) for r in group.runs[0].records if r.audit and r.audit["error"] is not None
            ]
            colour, dashes = _style(groups, group)
            x, y = zip(*rounds, strict=True)
            panel.plot(x, y, color=colour, linestyle=dashes, linewidth=1.0, label=group.label)
        panel.axhline(1, color=FAINT, linewidth=0.8)
        panel.set(xlabel="round", ylabel="error (as sent: 1)", ylim=(0, None))
        panel.legend(frameon=False)

    errors = "; ".join(
        f"{g.label}: {g.estimate('approximation_error').text('.2f')}, best possible multiple "
        f"{g.estimate('best_scale_error').text('.2f')}"
        for g in audited
    )
    text = f"Distance of completed updates to the true ones, over that of what was sent. {errors}."
    return (
        f"<section><h2>How close completing came</h2><figure>{_svg(draw, text)}</figure>"
        f"<p class=note>{html.escape(text)}</p></section>"
    )


def _partition(group: Group) -> str:
    """Return who holds what, if the run folder says."""
    held = read_partition(group.runs[0].folder)
    if held is None:
        return ""
    counts = np.array(held)

    def draw(panel: Any) -> None:
        held_classes = np.ma.masked_equal(counts, 0)
        image = panel.imshow(held_classes, aspect="auto", interpolation="nearest", cmap="viridis")
        panel.set(xlabel="class" if counts.shape[1] > 1 else "", ylabel="device")
        bar = panel.figure.colorbar(image, ax=panel)
        bar.set_label("examples")

    each, sizes = (counts > 0).sum(1), counts.sum(1)
    text = f"{len(counts)} devices hold {sizes.min()} to {sizes.max()} examples each"
    text += f", of {each.min()} to {each.max()} of {counts.shape[1]} classes." if counts.shape[1] > 1 else "."
    figure = _svg(draw, f"Examples of each class on each device. {text}", height=3.2)
    return f"<section><h2>Who holds what</h2><figure>{figure}</figure><p class=note>{text}</p></section>"


def _experiment(group: Group) -> str:
    rows = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in _flatten(group.experiment.resolved()).items()
    )
    seeds = ", ".join(str(run.experiment.seed) for run in group.runs)
    title = html.escape(f"{group.label}, seeds {seeds}")
    return f'<details><summary>{title}</summary><div class="wide"><table class="plain">{rows}</table></div></details>'


def _versions(groups: Sequence[Group]) -> str:
    used = {tuple(read_versions(run.folder).items()) for group in groups for run in group.runs}
    return "; ".join(" ".join(f"{name} {version}" for name, version in versions) for versions in sorted(used))
