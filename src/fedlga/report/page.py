"""One HTML page about runs: everything in one file, nothing fetched, to look at or to send.

The figures are matplotlib's, drawn as SVG into the page; the page gives them its own ink, so that they follow light
and dark. Every figure has a text that says what it shows.
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

from .evidence import Estimate
from .experiment import Experiment
from .figures import METHOD_COLOURS, METHOD_DASHES, METHOD_NAMES, banded, look, over, pyplot, tails, within
from .runs import Run, made_with, partition_of, read
from .settings import BadInput

AXES = {"rounds": "rounds", "seconds": "seconds on this machine", "simulated_seconds": "simulated seconds"}
INK = "#010203"  # what is drawn in this colour is drawn in the page's ink
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
        """Theirs, the first seed's."""
        return self.runs[0].experiment

    @property
    def unfinished(self) -> int:
        """Runs that are not over."""
        return sum(not run.summary["finished"] for run in self.runs)

    def estimate(self, measure: str) -> Estimate:
        """A measure over the seeds."""
        return Estimate.of([run.summary.get(measure) for run in self.runs])


def collected(folders: Sequence[Path]) -> list[Group]:
    """The runs in these folders, however deep, put together by experiment."""
    runs: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(f"DIR: {str(folder)!r} is no folder; it takes those of runs or comparisons")
        files = [folder / "experiment.toml"] if (folder / "experiment.toml").exists() else _below(folder)
        found = [read(file.parent) for file in files]
        runs |= {run.folder.resolve(): run for run in found if run.records}
        if not any(run.records for run in found):
            raise BadInput(f"DIR: {str(folder)!r} holds no run with a finished round")
    together: dict[str, list[Run]] = {}
    for run in runs.values():
        members = together.setdefault(run.experiment.resolved().changed({"seed": 0}).to_toml(), [])
        same = next((i for i, other in enumerate(members) if other.experiment.seed == run.experiment.seed), None)
        if same is None:
            members.append(run)
        elif len(run.records) > len(members[same].records):  # the same run again is no evidence: the longer one counts
            members[same] = run
    labels = _labels([members[0].experiment.resolved() for members in together.values()])
    return [Group(label, members) for label, members in zip(labels, together.values(), strict=True)]


def _below(folder: Path) -> list[Path]:
    """Every run's experiment. Runs may be going on: os.walk bears folders that vanish, and rglob does not."""
    return sorted(Path(there) / "experiment.toml" for there, _, files in os.walk(folder) if "experiment.toml" in files)


def _labels(experiments: Sequence[Experiment]) -> list[str]:
    """Method and policy, and whatever else they differ in."""
    plain = [{k: v for k, v in e.as_dict().items() if not isinstance(v, dict)} for e in experiments]
    for e, values in zip(experiments, plain, strict=True):  # and the settings of methods and policies
        values |= {f"{who}.{name}": value for who, own in e.options.items() for name, value in own.items()}
    names = {name for values in plain for name in values} - {"seed", "method", "stragglers"}
    differ = sorted(name for name in names if len({repr(v[name]) for v in plain if name in v}) > 1)
    return [
        ", ".join([f"{_name(e.method)} ({e.policy})", *(f"{name} {v[name]}" for name in differ if name in v)])
        for e, v in zip(experiments, plain, strict=True)
    ]


def _name(method: str) -> str:
    return METHOD_NAMES.get(method, method)


def page(groups: Sequence[Group]) -> str:
    """The page."""
    template = Template(Path(__file__).with_name("report.html").read_text(encoding="utf-8"))
    first = groups[0].experiment
    slow = "".join(_who_was_slow(group) for group in groups)
    slow = f'<section><h2>Who was slow, and what became of it</h2><div class="grid">{slow}</div></section>'
    parts = [_curves(groups), _table(groups), slow, _errors(groups), _partition(groups[0])]
    details = "".join(_experiment(group) for group in groups)
    return template.substitute(
        title=html.escape(f"{first.dataset}: {', '.join(group.label for group in groups)}"),
        headline=html.escape(headline(groups)),
        intro=html.escape(_intro(groups)),
        body="\n".join(part for part in parts if part),
        details=details,
        versions=html.escape(_versions(groups)),
    )


def headline(groups: Sequence[Group]) -> str:
    """What happened, in a sentence."""
    target = groups[0].experiment.target
    over = not any(g.unfinished for g in groups)
    seeds = {tuple(sorted(run.experiment.seed for run in g.runs)) for g in groups}
    if _target(groups) is None or not over or len(seeds) > 1:  # nothing that could be compared
        return "; ".join(_told(group) for group in groups) + "."
    if len(groups) == 1:
        return _told(groups[0]) + "."
    reached = [g for g in groups if g.estimate("rounds_to_target").mean is not None]
    if not reached:
        best = max(groups, key=lambda g: g.estimate("best_accuracy").mean or 0.0)
        accuracy = best.estimate("best_accuracy").mean or 0.0
        return f"Nobody reached {target:.0%} on every seed; {best.label} came closest, with {accuracy:.1%}."
    by_rounds = min(reached, key=lambda g: g.estimate("rounds_to_target").mean or 0.0)
    by_time = min(reached, key=lambda g: g.estimate("simulated_seconds_to_target").mean or 0.0)
    rounds = by_rounds.estimate("rounds_to_target").text()
    text = f"{by_rounds.label} reached {target:.0%} in the fewest rounds, {rounds}"
    seconds = by_time.estimate("simulated_seconds_to_target")
    if by_time is by_rounds:
        return f"{text}, and in the least simulated time, {seconds.text()} s."
    return f"{text}; {by_time.label} in the least simulated time, {seconds.text()} s."


def _target(groups: Sequence[Group]) -> float | None:
    """What all of them were to reach, if that is one thing."""
    target = groups[0].experiment.target
    return target if len({(g.experiment.dataset, g.experiment.target) for g in groups}) == 1 else None


def _told(group: Group) -> str:
    seen, target = group.estimate("rounds_to_target"), group.experiment.target
    best = group.estimate("best_accuracy")
    accuracy = "" if best.mean is None else f"; best accuracy {best.text('.1%')}"
    if group.unfinished:
        return f"{group.label} is not over: {group.unfinished} of {len(group.runs)} runs stopped early{accuracy}"
    if seen.mean is None:
        of = f" on {seen.censored} of {seen.count} seeds" if seen.count > 1 else ""
        return f"{group.label} did not reach {target:.0%}{of}{accuracy}"
    seconds = group.estimate("simulated_seconds_to_target").text()
    return f"{group.label} reached {target:.0%} after {seen.text()} rounds and {seconds} simulated seconds{accuracy}"


def _intro(groups: Sequence[Group]) -> str:
    e, seeds = groups[0].experiment, max(len(group.runs) for group in groups)
    slow = {
        "paper": f"{e.rho:.0%} of them slow",
        "equal": "equally fast",
        "speeds": "of unequal speeds",
        "real": "real ones",
    }
    each = len({len(group.runs) for group in groups}) == 1
    many = f"{seeds} seeds each" if seeds > 1 and each else f"up to {seeds} seeds" if seeds > 1 else "one seed"
    return (
        f"{e.dataset} on {e.devices} devices, {e.cohort} a round, {slow.get(e.fleet, 'as in a trace')}; "
        f"model {e.model}; {sum(len(group.runs) for group in groups)} runs, {many}."
    )


# Figures.


def _svg(draw: Callable[[Any], None], text: str, height: float = 2.6, width: float = 4.4) -> str:
    """A figure in the page's ink, with a text for those who cannot see it."""
    plt = pyplot()
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
    # Several figures in a page: the names inside one must not meet those of another.
    own = f"f{zlib.crc32(text.encode()):08x}-"
    drawn = re.sub(r'(id="|url\(#|href="#)', lambda found: found[1] + own, drawn)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _style(groups: Sequence[Group], group: Group) -> tuple[str, Any]:
    """By method where several are compared, by policy where one is; dashes by the other. Else each its own."""
    e, methods = group.experiment, {g.experiment.method for g in groups}
    kinds = [(g.experiment.method, g.experiment.policy) for g in groups]
    if len(set(kinds)) < len(kinds) or any(method not in METHOD_NAMES for method in methods):
        index = [g.label for g in groups].index(group.label)
        colours, dashes = list(METHOD_COLOURS.values()), list(METHOD_DASHES.values())
        return colours[index % len(colours)], dashes[(index + index // len(colours)) % len(dashes)]
    if len(methods) == 1 and len(groups) > 1:
        return look(e.method, e.policy)
    colour, dashes = look(e.method)
    policies = {g.experiment.policy for g in groups if g.experiment.method == e.method}
    return colour, look(e.method, e.policy)[1] if len(policies) > 1 else dashes


def _curves(groups: Sequence[Group]) -> str:
    """Accuracy and training loss, over each of three axes: one of them shown at a time."""
    measures = {"accuracy": "test accuracy", "train_loss": "training loss"}
    if any(r.accuracy_slow is not None for group in groups for r in group.runs[0].records):
        measures["accuracy_slow"] = "accuracy on the slow devices' data"
    shown: list[str] = []
    for axis in AXES:
        figures = "".join(_curve(groups, measure, axis, title) for measure, title in measures.items())
        shown.append(f'<div class="axis grid" data-axis="{axis}">{figures}</div>')
    switch = "".join(
        f'<label><input type="radio" name="axis" value="{axis}"{" checked" * (axis == "rounds")}> {title}</label>'
        for axis, title in AXES.items()
    )
    note = (
        "Mean over the seeds, up to where the first of their runs ends (each then goes on by itself, thin); "
        "shaded, from three seeds on: its 95 % interval. The line across is the target."
    )
    return (
        f'<section><h2>Learning</h2><fieldset class="switch"><legend>over</legend>{switch}</fieldset>'
        f"{''.join(shown)}<p class=note>{note}</p></section>"
    )


def _curve(groups: Sequence[Group], measure: str, axis: str, title: str) -> str:
    def draw(panel: Any) -> None:
        for group in groups:
            x, values = over([run.records for run in group.runs], measure, axis)
            if len(x):
                banded(panel, x, values, _style(groups, group), group.label)
                tails(panel, [run.records for run in group.runs], measure, _style(groups, group)[0], axis)
        if measure == "accuracy" and (target := _target(groups)) is not None:
            panel.axhline(target, color=FAINT, linewidth=0.8)
        within(panel)
        panel.set(xlabel=AXES[axis], ylabel=title)
        panel.grid(visible=True, color=FAINT, linewidth=0.3, alpha=0.6)
        if len(groups) <= MOST_NAMED:
            panel.legend(frameon=False)

    ends = "; ".join(f"{g.label} ends at {_end(g, measure)}" for g in groups)
    return f"<figure>{_svg(draw, f'{title} over {AXES[axis]}. {ends}.')}</figure>"


def _end(group: Group, measure: str) -> str:
    taken = [[value for r in run.records if (value := getattr(r, measure)) is not None] for run in group.runs]
    known = [values[-1] for values in taken if values]
    if not known:
        return "no value"
    mean = sum(known) / len(known)
    return f"{mean:.1%}" if "accuracy" in measure else f"{mean:.3f}"


def _table(groups: Sequence[Group]) -> str:
    columns: dict[str, tuple[str, str]] = {
        "rounds": ("rounds_to_target", ".0f"),
        "seconds": ("seconds_to_target", ".1f"),
        "simulated seconds": ("simulated_seconds_to_target", ".0f"),
        "best accuracy": ("best_accuracy", ".1%"),
        "at the end": ("last_accuracy", ".1%"),
        "slow devices' data": ("last_accuracy_slow", ".1%"),
        "seconds a round": ("seconds_per_round", ".3f"),
    }
    known = {
        t: m for t, m in columns.items() if any(run.summary.get(m[0]) is not None for g in groups for run in g.runs)
    }
    head = "".join(f"<th scope=col>{title}</th>" for title in known)
    rows = ""
    for group in groups:
        cells = "".join(f"<td>{html.escape(_cell(group, name, form))}</td>" for name, form in known.values())
        rows += f"<tr><th scope=row>{html.escape(group.label)}</th>{cells}</tr>"
    target = _target(groups)
    goal = "their targets" if target is None else f"{target:.0%}"
    note = (
        f"Rounds and seconds to {goal}; mean and 95 % interval over the seeds. 'k of n': only k of n seeds "
        "reached it, so there is no mean. At the end: mean of the last ten evaluations."
    )
    table = f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<section><h2>Numbers</h2><div class="wide">{table}</div><p class=note>{note}</p></section>'


def _cell(group: Group, measure: str, form: str) -> str:
    """A mean; of how many seeds reached the target; or nothing, where it was not measured."""
    seen = group.estimate(measure)
    return "-" if seen.mean is None and not measure.endswith("_to_target") else seen.text(form)


def states(run: Run) -> tuple[Any, list[int]]:
    """What became of every device's work, devices x rounds; and which devices these are."""
    records = run.records[:MOST_ROUNDS]
    devices = sorted({device for record in records for device in record.devices})[:MOST_DEVICES]
    row = {device: index for index, device in enumerate(devices)}
    made = np.full((len(devices), len(records)), NOT_ASKED)
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
            made[row[device], column] = state
    return made, devices


def _who_was_slow(group: Group) -> str:
    run = group.runs[0]
    made, devices = states(run)
    counted = {name: int((made == state).sum()) for state, (name, _) in STATES.items()}
    present = {state: look for state, look in STATES.items() if counted[look[0]]}

    def draw(panel: Any) -> None:
        from matplotlib.colors import to_rgba
        from matplotlib.patches import Patch

        picture = np.zeros((*made.shape, 4))
        for state, (_, colour) in present.items():
            picture[made == state] = to_rgba(colour)
        panel.imshow(
            picture, aspect="auto", interpolation="nearest", extent=(0.5, made.shape[1] + 0.5, len(devices), 0)
        )
        panel.set(xlabel="round", ylabel="device" if devices == list(range(len(devices))) else "devices that took part")
        handles = [Patch(color=colour, label=name) for name, colour in present.values()]
        panel.legend(handles=handles, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))

    said = ", ".join(f"{count} times {name}" for name, count in counted.items() if count)
    text = f"What became of the work of {len(devices)} devices in {made.shape[1]} rounds: {said}."
    figure = _svg(draw, f"{group.label}. {text}", height=min(1.4 + 0.04 * len(devices), 5.0))
    note = html.escape(f"{text} {_completion(group)} Seed {run.experiment.seed}.")
    return f"<div><h3>{html.escape(group.label)}</h3><figure>{figure}</figure><p class=note>{note}</p></div>"


def _completion(group: Group) -> str:
    scales = [s for run in group.runs for r in run.records for s in r.scales.values() if s is not None]
    if not scales:
        return ""
    middle = float(np.median(scales))
    return f"Completed updates were multiplied by {min(scales):.2f} to {max(scales):.2f}, in the middle {middle:.2f}."


def _errors(groups: Sequence[Group]) -> str:
    """Approximation error over rounds, where it was measured."""
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

    said = "; ".join(
        f"{g.label}: {g.estimate('approximation_error').text('.2f')}, best possible multiple "
        f"{g.estimate('best_scale_error').text('.2f')}"
        for g in audited
    )
    text = f"Distance of completed updates to the true ones, over that of what was sent. {said}."
    return (
        f"<section><h2>How close completing came</h2><figure>{_svg(draw, text)}</figure>"
        f"<p class=note>{html.escape(text)}</p></section>"
    )


def _partition(group: Group) -> str:
    """Who holds what, where the run folder says."""
    held = partition_of(group.runs[0].folder)
    if held is None:
        return ""
    counts = np.array(held)

    def draw(panel: Any) -> None:
        seen = np.ma.masked_equal(counts, 0)
        image = panel.imshow(seen, aspect="auto", interpolation="nearest", cmap="viridis")
        panel.set(xlabel="class", ylabel="device")
        bar = panel.figure.colorbar(image, ax=panel)
        bar.set_label("examples")

    each, sizes = (counts > 0).sum(1), counts.sum(1)
    text = (
        f"{len(counts)} devices hold {sizes.min()} to {sizes.max()} examples each, "
        f"of {each.min()} to {each.max()} of {counts.shape[1]} classes."
    )
    figure = _svg(draw, f"Examples of each class on each device. {text}", height=3.2)
    return f"<section><h2>Who holds what</h2><figure>{figure}</figure><p class=note>{text}</p></section>"


def _experiment(group: Group) -> str:
    rows = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in group.experiment.as_dict().items()
    )
    seeds = ", ".join(str(run.experiment.seed) for run in group.runs)
    title = html.escape(f"{group.label}, seeds {seeds}")
    return f'<details><summary>{title}</summary><div class="wide"><table class="plain">{rows}</table></div></details>'


def _versions(groups: Sequence[Group]) -> str:
    made = {tuple(made_with(run.folder).items()) for group in groups for run in group.runs}
    return "; ".join(" ".join(f"{name} {version}" for name, version in versions) for versions in sorted(made))
