"""The runs behind the items.

Items share runs: the learning curves also give best accuracies, running times and one point of every sweep. A run is
kept in OUT/runs/SETTING/POINT/METHOD-POLICY/seed-S; a run that is there and finished is never run again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlga.core.settings import BadInput, choose
from fedlga.experiments.compare import Step
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import list_measures
from fedlga.experiments.records import EXPERIMENT, read_records, read_summary
from fedlga.experiments.run import remove_weights, run_and_record
from fedlga.experiments.statistics import Estimate
from fedlga.paper.items import ITEMS, SIX, Item, Point
from fedlga.paper.printed import find_printed
from fedlga.paper.settings import Setting
from fedlga.report.figures import describe_seeds
from fedlga.report.seed_curves import CURVES, Curves, read_curves

if TYPE_CHECKING:
    from fedlga.backends.pool.workers import Workers
    from fedlga.core.types import Record
    from fedlga.learning.reading import TaskData


@dataclass(frozen=True)
class ItemRuns:
    """An item for one dataset and these seeds: its runs, where they are kept, and their values."""

    item: Item
    setting: Setting
    seeds: Sequence[int]
    out: Path
    methods: Sequence[str] = ()  # of the item's methods; empty: all

    @cached_property
    def points(self) -> list[Point]:
        """What is varied."""
        return self.item.points(self.setting)

    @cached_property
    def kinds(self) -> list[tuple[str, str]]:
        """Methods with their policies."""
        return [
            (method, policy)
            for method in self.item.methods
            if not self.methods or method in self.methods
            for policy in self.item.policies or [self.setting.base.changed({"method": method}).policy]
        ]

    def experiment(self, point: Point, method: str, policy: str, seed: int) -> Experiment:
        """Return the experiment of one run."""
        changes = {"method": method, "stragglers": policy, "seed": seed, **self.setting.own.get(method, {})}
        return self.setting.base.changed({**changes, **point.changes})

    def folder(self, point: Point, method: str, policy: str, seed: int) -> Path:
        """Return where one run is kept."""
        return self.out / "runs" / self.setting.name / point.name / f"{method}-{policy}" / f"seed-{seed}"

    def all(self) -> list[tuple[Experiment, Path]]:
        """Return all runs, seed by seed, so that what is interrupted early is still paired."""
        return [
            (self.experiment(point, method, policy, seed), self.folder(point, method, policy, seed))
            for seed in self.seeds
            for point in self.points
            for method, policy in self.kinds
        ]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each run that is done: where it belongs, and its summary."""
        return [
            {"point": point.name, "value": point.value, **summary}
            for seed in self.seeds
            for point in self.points
            for method, policy in self.kinds
            if (summary := read_summary(self.folder(point, method, policy, seed)))
        ]

    def arm(self, point: Point, method: str, policy: str) -> str:
        """Return the name of a learning curve."""
        return f"{method} {policy} {point.name}"

    def read_runs(self) -> dict[str, dict[int, Sequence[Record]]]:
        """Return the rounds of all runs that are done, by the name of their learning curve and by seed."""
        runs: dict[str, dict[int, Sequence[Record]]] = {}
        for point in self.points:
            for method, policy in self.kinds:
                folders = {seed: self.folder(point, method, policy, seed) for seed in self.seeds}
                for seed, folder in folders.items():
                    if read_summary(folder):
                        runs.setdefault(self.arm(point, method, policy), {})[seed] = read_records(folder)
        return runs

    @property
    def curves_file(self) -> Path:
        """The file with the item's learning curves."""
        return self.out / self.item.name / f"{self.setting.name}-{CURVES}"

    @cached_property
    def curves(self) -> Curves:
        """The item's learning curves, as they stand in their file."""
        return read_curves(self.curves_file)

    def values(self, measure: str, method: str, policy: str, point: Point | None = None) -> dict[int, float | None]:
        """Return a measure by seed."""
        name = (point or self.points[0]).name
        return {
            row["seed"]: row.get(measure)
            for row in self.rows
            if (row["method"], row["stragglers"], row["point"]) == (method, policy, name)
        }

    def limit(self, point: Point | None = None) -> int:
        """Return the rounds that a run at this point has to reach the target."""
        changes = (point or self.points[0]).changes
        return int(changes.get("rounds", self.setting.base.rounds))

    def describe(self, *, shaded: bool = True) -> str:
        """Return the note below the item's figure: data set, seeds, and what the interval is."""
        return describe_seeds(self.setting.name, [len({row["seed"] for row in self.rows})], shaded=shaded)

    # Cells of a table

    def text(self, measure: str, point: Point, method: str, policy: str) -> str:
        """Return the mean of a measure over the seeds, with its interval."""
        values = list(self.values(measure, method, policy, point).values())
        form = next(m.format for m in list_measures() if m.name == measure)
        return Estimate.of(values).text(form)

    def rounds_text(self, point: Point, method: str, policy: str) -> str:
        """Return the rounds to the target; or how many seeds reached it in time."""
        values = list(self.values("rounds_to_target", method, policy, point).values())
        return Estimate.of(values).text(".0f", self.limit(point))

    def printed(self, point: Point, method: str) -> dict[str, str]:
        """Return the paper's own number, as a column."""
        title = "the paper" if self.setting.exact else "the paper, in its setting"
        return {title: find_printed(self.item.name, self.setting.name, method, point.value)}


def plan_items(
    names: Sequence[str], setting: Setting, seeds: Sequence[int], out: Path, methods: Sequence[str] = ()
) -> list[ItemRuns]:
    """Return these items, those with fewer rounds first; 'all' is every one."""
    for method in methods:
        choose("--methods", method, SIX)
    if "all" in names:
        names = list(ITEMS)
    for name in names:
        choose("ITEM", name, [*ITEMS, "all"])
    items = [ItemRuns(ITEMS[name], setting, seeds, out, methods) for name in dict.fromkeys(names)]
    if empty := [runs.item.name for runs in items if not runs.kinds]:
        raise BadInput(f"--methods: got {', '.join(methods)}; {empty[0]} has none of them")
    return sorted(items, key=lambda runs: sum(e.rounds for e, _ in runs.all()))


def find_missing(items: Sequence[ItemRuns]) -> list[tuple[Experiment, Path]]:
    """Return the runs that are not done yet, each once."""
    runs = {folder: e for item in items for e, folder in item.all()}
    return [(e, folder) for folder, e in runs.items() if not read_summary(folder)]


def check_same_experiments(runs: Sequence[tuple[Experiment, Path]]) -> None:
    """Raise BadInput if a folder holds a run of another experiment, of an earlier version or put there by hand."""
    for e, folder in runs:
        file = folder / EXPERIMENT
        if file.is_file() and Experiment.load(file).resolved() != e.resolved():
            raise BadInput(f"--out: {str(folder)!r} holds another experiment than this item's; take another folder")


def perform(
    runs: Sequence[tuple[Experiment, Path]], data: TaskData | None, workers: Workers | None = None
) -> Generator[Step]:
    """Do runs one after the other; one that was interrupted continues where it was."""
    for number, (e, folder) in enumerate(runs, start=1):
        started = (folder / EXPERIMENT).exists()
        for record in run_and_record(e, folder, resume=started, data=data, workers=workers):
            yield Step(e, number, record)
        remove_weights(folder)
        yield Step(e, number, None)
