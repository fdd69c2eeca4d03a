"""What the terminal shows: live progress, and small tables at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedlga.cli.options import count
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import format_metric, format_target, metric_format
from fedlga.experiments.paired import PairedRow
from fedlga.experiments.statistics import Estimate
from fedlga.experiments.tables import format_arm, format_spread, has_targets, list_end_measures, list_target_measures

PLAIN_SECONDS = 5.0  # between lines if the output is not a terminal
NAMES_SHOWN = 3


class Display:
    """A live line on a terminal; a plain line every few seconds in a file or a pipe. Use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._live = self.console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
            transient=True,
        )
        self._task: TaskID | None = None
        self._fetching: TaskID | None = None
        self._total = 0
        self._printed = 0.0

    def __enter__(self) -> Display:
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._progress.stop()

    def begin(self, total: int, done: int = 0, title: str = "round") -> None:
        """Start counting `total` rounds, of which some may be done."""
        self._total, self._title, self._started, self._from = total, title, time.monotonic(), done
        self._task = self._progress.add_task(f"{title} {done}/{total}", total=total, completed=done, text="starting")

    def show_round(self, record: Record, count: int | None = None) -> None:
        """Show that one more round is done."""
        count = record.round if count is None else count
        if self._fetching is not None:
            self._progress.remove_task(self._fetching)
            self._fetching = None
        if self._live and self._task is not None:
            title = f"{self._title} {count}/{self._total}"
            self._progress.update(self._task, completed=count, description=title, text=describe_round(record))
        elif time.monotonic() - self._printed > PLAIN_SECONDS or count == self._total:
            self._printed = time.monotonic()
            each = (self._printed - self._started) / max(count - self._from, 1)
            left = f"{each * (self._total - count):.0f} s left"
            self.console.print(f"{self._title} {count}/{self._total}  {describe_round(record)}  {left}", soft_wrap=True)

    def show_fetch(self, what: str, done: int, total: int | None) -> None:
        """Show the progress of a download."""
        so_far = f"{done / 1e6:.1f} MB" + (f" of {total / 1e6:.1f}" if total else "") if done else ""
        if self._live:
            if self._fetching is None:
                self._fetching = self._progress.add_task("fetching", text="")
            self._progress.update(
                self._fetching, description=f"fetching {what}", total=total, completed=done, text=so_far
            )
        elif time.monotonic() - self._printed > PLAIN_SECONDS:
            self._printed = time.monotonic()
            self.console.print(f"fetching {what} {so_far}")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)


def describe_round(record: Record) -> str:
    """Return a round in few words: its first metric, the loss, who was slow."""
    name = next(iter(record.metrics), "loss")
    value, lost = record.metrics.get(name), record.metrics.get("loss")
    measured = f"{name} {format_metric(name, value)}" if value is not None and name != "loss" else ""
    loss = f"loss {lost:.3f}" if lost is not None else ""
    slow = record.slow
    names = " ".join(str(d) for d in slow[:NAMES_SHOWN]) + (
        f" +{len(slow) - NAMES_SHOWN}" if len(slow) > NAMES_SHOWN else ""
    )
    return "  ".join(part for part in (measured, loss, f"slow {names}" if slow else "no device slow") if part)


def describe_experiment(e: Experiment) -> str:
    """Return an experiment in one line."""
    who = f"{e.cohort} of {e.devices} devices a round, {e.describe_fleet()}"
    return f"{e.method} ({e.policy}), {e.subject}, seed {e.seed}: {who}"


def describe_task(e: Experiment) -> str:
    """Return what a task is measured by, in one line."""
    target = "" if e.target is None else f", target {format_metric(e.target_metric, e.target)}"
    return f"measured by {e.target_metric}, {e.better} is better{target}; partition {e.partition}"


def make_run_table(summary: Mapping[str, Any]) -> Table:
    """Return the end of a run."""
    s = summary
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    metric = s["metric"]
    rows = {
        "rounds": f"{s['rounds']}" + ("" if s["finished"] else " (stopped early)"),
        f"best {metric}": format_metric(metric, s[f"best_{metric}"], digits=2),
        f"final {metric}": format_metric(metric, s[f"final_{metric}"], digits=2),
        **({} if s["target"] is None else {f"to {format_target(metric, s['target'])}": _describe_reached(s)}),
        "seconds": f"{s['seconds']:.1f} ({s['seconds_per_round']:.3f} a round)" if s["rounds"] else "0",
        "simulated seconds": f"{s['simulated_seconds']:.0f}",
        **({} if s.get("device_seconds") is None else {"devices worked": _describe_costs(s)}),
    }
    if s.get("approximation_error") is not None:
        rows["approximation"] = (
            f"error {s['approximation_error']:.2f} (as sent: 1, best multiple: {s['best_scale_error']:.2f})"
        )
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _describe_costs(s: Mapping[str, Any]) -> str:
    wasted = f", {s['steps_wasted'] / s['steps']:.0%} of the steps for nothing" if s["steps_wasted"] else ""
    down, up = (f"{size / 1e6:,.{0 if size >= 1e7 else 2}f} MB" for size in (s["bytes_down"], s["bytes_up"]))  # noqa: PLR2004
    traffic = f"{down} down, {up} up"
    return f"{s['device_seconds']:.0f} s{wasted}; {traffic}"


def _describe_reached(s: Mapping[str, Any]) -> str:
    if s["rounds_to_target"] is None:
        return "not reached"
    seconds = f"{s['seconds_to_target']:.1f} s, {s['simulated_seconds_to_target']:.0f} simulated s"
    return f"{count(s['rounds_to_target'], 'round')}, {seconds}"


def describe_outcome(summary: Mapping[str, Any]) -> str:
    """Return a run's end in a few words."""
    metric = summary.get("metric", "accuracy")
    value = format_metric(metric, summary[f"best_{metric}"], digits=2)
    best = f"best {value}" if metric == "accuracy" else f"best {metric} {value}"
    if summary["diverged"]:
        return f"diverged in round {summary['rounds']}, {best}"
    if summary["target"] is None:
        return best
    reached = summary["rounds_to_target"]
    target = format_target(metric, summary["target"])
    return f"{target} " + ("never" if reached is None else f"after {count(reached, 'round')}") + f", {best}"


def make_comparison_table(rows: Sequence[Mapping[str, Any]], e: Experiment, metric: str) -> Table:
    """Return mean and spread over paired seeds, within 80 columns. Without a target: how good runs were."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("method", no_wrap=True)
    table.add_column("stragglers", no_wrap=True)
    has_target = has_targets(rows)
    measures = list_target_measures(rows, metric)
    if has_target:
        goal = "target" if e.target is None else format_target(metric, e.target)
        titles = [f"rounds\nto {goal}", "reached", "v first", *(m.short or m.title for m in measures[1:])]
    else:
        titles = [m.title for m in measures]
    for title in titles:
        table.add_column(title, justify="right")
    for row in rows:
        cells = [format_spread(row, m) for m in measures]
        if has_target:
            reached = "-" if row["reached"] is None else f"{row['reached']}/{row['seeds']}"
            more = "" if row["rounds_more"] is None else f"{row['rounds_more']:+.1f}"
            cells = [cells[0], reached, more, *cells[1:]]
        table.add_row(row["method"], format_arm(row), *cells)
    return table


def make_end_table(rows: Sequence[Mapping[str, Any]], metric: str) -> Table | None:
    """Return how runs ended, for whom; None unless some devices are always slow, or updates were audited."""
    measures = list_end_measures(rows, metric)
    if not measures:
        return None
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("at the end", no_wrap=True)
    table.add_column("stragglers", no_wrap=True)
    for m in measures:
        table.add_column(m.short or m.title, justify="right")
    for row in rows:
        table.add_row(row["method"], format_arm(row), *(format_spread(row, m) for m in measures))
    return table


def make_tuning_table(rows: Sequence[PairedRow], e: Experiment, metric: str) -> Table:
    """Return the held-out results of tuned arms, and the first arm's verdict against each; within 80 columns."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("arm")
    goal = format_target(metric, e.target)
    titles = {
        f"closing_{metric}": (metric, metric_format(metric)),
        f"closing_{metric}_slow": ("slow data", metric_format(metric)),
        "simulated_seconds_to_target": (f"s to {goal}", ".0f"),
    }
    measures = [name for name in titles if any(row.measure == name for row in rows)]
    for name in measures:
        table.add_column(titles[name][0], justify="right")
        table.add_column("", no_wrap=True)
    cells: dict[str, list[str]] = {}
    for name in measures:
        for row in (row for row in rows if row.measure == name):
            arm = " ".join(filter(None, (row.method, row.stragglers, row.settings)))
            value = Estimate(row.mean, row.half, row.seeds, row.censored).text(titles[name][1])
            cells.setdefault(arm, []).extend([value, row.verdict])
    for arm, texts in cells.items():
        table.add_row(arm, *texts)
    return table


def make_audit_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the audit over regimes, within 80 columns."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("one unit, eta_l", no_wrap=True)
    columns = {name: name for name in ("printed", "linear", "growth", "feedback", "best")}
    columns |= {"feedback_mean": "mean", "feedback_sum": "sum"}
    for title in columns.values():
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(row["regime"], *(f"{row[name]:.2f}" for name in columns))
    return table
