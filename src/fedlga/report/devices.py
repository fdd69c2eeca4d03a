"""The parts of a report about devices: who was slow, how close completing came, who holds what."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedlga.core.types import Record
from fedlga.experiments.records import Run, read_partition
from fedlga.report.figures import use_whole_numbers
from fedlga.report.groups import Group
from fedlga.report.style import choose_styles
from fedlga.report.svg import FAINT, draw_svg

NOT_ASKED, NOTHING, DROPPED, KEPT, COMPLETED, FINISHED = range(6)
STATES = {
    FINISHED: ("finished", "#0072B2"),
    COMPLETED: ("completed", "#D55E00"),
    KEPT: ("kept unfinished", "#E69F00"),
    DROPPED: ("thrown away", "#999999"),
    NOTHING: ("sent nothing", "#CC79A7"),
}
MOST_DEVICES, MOST_ROUNDS = 100, 400  # in the picture of who was slow


def classify_work(record: Record) -> list[tuple[int, int]]:
    """Return what became of the work of each device that was asked in a round."""
    used = set(record.used)
    states: list[tuple[int, int]] = []
    for device, steps, asked in zip(record.devices, record.steps, record.steps_asked, strict=True):
        if steps == 0:
            state = NOTHING
        elif device not in used:
            state = DROPPED
        elif device in record.scales:
            state = COMPLETED
        else:
            state = FINISHED if steps >= asked else KEPT
        states.append((device, state))
    return states


def find_states(run: Run) -> tuple[Any, list[int]]:
    """Return what became of every device's work, devices x rounds; and which devices these are."""
    records = run.records[:MOST_ROUNDS]
    devices = sorted({device for record in records for device in record.devices})[:MOST_DEVICES]
    row = {device: index for index, device in enumerate(devices)}
    states = np.full((len(devices), len(records)), NOT_ASKED)
    for column, r in enumerate(records):
        for device, state in classify_work(r):
            if device in row:
                states[row[device], column] = state
    return states, devices


def show_slow(group: Group) -> str:
    """Return the part about one group: who was slow, and what became of the work."""
    run = group.runs[0]
    states, devices = find_states(run)
    if not devices:  # of a population, nobody may be there
        return f"<div><h3>{html.escape(group.label)}</h3><p class=note>No device was asked for work.</p></div>"
    counts = {name: int((states == state).sum()) for state, (name, _) in STATES.items()}
    present = {state: (name, colour) for state, (name, colour) in STATES.items() if counts[name]}

    def draw(panel: Any) -> None:
        from matplotlib.colors import to_rgba
        from matplotlib.patches import Patch

        picture = np.zeros((*states.shape, 4))
        for state, (_, colour) in present.items():
            picture[states == state] = to_rgba(colour)
        panel.imshow(
            picture,
            aspect="auto",
            interpolation="nearest",
            extent=(0.5, states.shape[1] + 0.5, len(devices) - 0.5, -0.5),
        )
        panel.set(xlabel="round", ylabel="device")
        use_whole_numbers(panel.xaxis)
        _name_devices(panel.yaxis, devices)
        handles = [Patch(color=colour, label=name) for name, colour in present.values()]
        panel.legend(handles=handles, frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))

    times = ", ".join(f"{count} times {name}" for name, count in counts.items() if count)
    text = f"What became of the work of {len(devices)} devices in {states.shape[1]} rounds: {times}."
    figure = draw_svg(draw, f"{group.label}. {text}", height=min(1.4 + 0.04 * len(devices), 5.0))
    note = html.escape(f"{text} {_completion(group)} Seed {run.experiment.seed}.")
    return f"<div><h3>{html.escape(group.label)}</h3><figure>{figure}</figure><p class=note>{note}</p></div>"


def _completion(group: Group) -> str:
    scales = [s for run in group.runs for r in run.records for s in r.scales.values() if s is not None]
    if not scales:
        return ""
    median = float(np.median(scales))
    return f"Completed updates were multiplied by {min(scales):.2f} to {max(scales):.2f}, median {median:.2f}."


def _name_devices(axis: Any, devices: Sequence[int]) -> None:
    """Name the rows of a picture by their devices' own numbers, which may have gaps; a few of them if they are many."""
    every = -(-len(devices) // 12)
    rows = range(0, len(devices), every)
    axis.set_ticks(list(rows), [str(devices[row]) for row in rows])


def show_errors(groups: Sequence[Group]) -> str:
    """Return the approximation error over rounds, if it was measured."""
    audited = [g for g in groups if any(r.audit and r.audit.get("error") is not None for r in g.runs[0].records)]
    if not audited:
        return ""
    kinds = [(g.experiment.method, g.experiment.policy) for g in groups]
    styles = dict(zip((g.label for g in groups), choose_styles(kinds), strict=True))

    def draw(panel: Any) -> None:
        for group in audited:
            rounds = [
                (r.round, r.audit["error"]) for r in group.runs[0].records if r.audit and r.audit["error"] is not None
            ]
            colour, dashes = styles[group.label]
            x, y = zip(*rounds, strict=True)
            panel.plot(x, y, color=colour, linestyle=dashes, linewidth=1.0, label=group.label)
        panel.axhline(1, color=FAINT, linewidth=0.8, label="as sent")
        panel.set(xlabel="round", ylabel="error (as sent: 1)", ylim=(0, None))
        use_whole_numbers(panel.xaxis)
        panel.figure.legend(frameon=False, loc="outside lower left", ncols=1 if len(audited) > 1 else 2)

    errors = "; ".join(
        f"{g.label}: {g.estimate('approximation_error').text('.2f')}, best possible multiple "
        f"{g.estimate('best_scale_error').text('.2f')}"
        for g in audited
    )
    text = f"Distance of completed updates to the true ones, over that of what was sent. {errors}."
    figure = draw_svg(draw, text, height=2.4 + 0.15 * len(audited))
    return (
        f"<section><h2>How close completing came</h2><figure>{figure}</figure>"
        f"<p class=note>{html.escape(text)}</p></section>"
    )


def show_partition(group: Group) -> str:
    """Return who holds what, if the run folder says."""
    held = read_partition(group.runs[0].folder)
    if held is None:
        return ""
    counts = np.array(held)

    def draw(panel: Any) -> None:
        held_classes = np.ma.masked_equal(counts, 0)
        image = panel.imshow(held_classes, aspect="auto", interpolation="nearest", cmap="viridis")
        panel.set(xlabel="class" if counts.shape[1] > 1 else "", ylabel="device")
        use_whole_numbers(panel.xaxis)
        use_whole_numbers(panel.yaxis)
        bar = panel.figure.colorbar(image, ax=panel)
        bar.set_label("examples")

    each, sizes = (counts > 0).sum(1), counts.sum(1)
    text = f"{len(counts)} devices hold {sizes.min()} to {sizes.max()} examples each"
    text += f", of {each.min()} to {each.max()} of {counts.shape[1]} classes." if counts.shape[1] > 1 else "."
    figure = draw_svg(draw, f"Examples of each class on each device. {text}", height=3.2)
    return f"<section><h2>Who holds what</h2><figure>{figure}</figure><p class=note>{text}</p></section>"
