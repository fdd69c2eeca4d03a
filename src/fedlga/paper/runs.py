"""The runs behind the items.

Items share runs: the learning curves also give best accuracies, running times and one point of every sweep. A run is
kept in OUT/runs/SETTING/POINT/METHOD-POLICY/seed-S; what is there and finished is never run again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..compare import Step
from ..experiment import Experiment
from ..runs import read, recorded, write_atomically
from ..settings import BadInput, choose
from .items import BASE, EXAMPLES, ITEMS, TAU_SHARES, Item, Point, Setting

if TYPE_CHECKING:
    from ..backends.pool import Workers
    from ..data.datasets import Data
    from ..types import Record


@dataclass(frozen=True)
class Work:
    """An item for one dataset and these seeds: its runs and where they are kept."""

    item: Item
    setting: Setting
    seeds: Sequence[int]
    out: Path

    @cached_property
    def points(self) -> list[Point]:
        """What is varied; the paper's default is always the point BASE, whose runs everybody shares."""
        s, name = self.setting, self.item.name
        if name == "time":
            rounds = min(150, s.base.rounds)
            every = max(3, s.base.evaluate_every)
            # The deadline is what a device of median speed, a step a second, needs for all its work.
            steps = s.base.steps_per_epoch or EXAMPLES[s.base.dataset] // s.base.devices // s.base.batch_size
            fleet = {"fleet": "speeds", "deadline": float(s.base.epochs * steps)}
            return [Point("speeds", "speeds", {**fleet, "rounds": rounds, "evaluate_every": every})]
        if name == "audit":
            regimes = s.regimes or {"base": {"rounds": s.base.rounds}}
            return [
                Point("audit-" + _plain(regime), regime, {"audit": True, "evaluate_every": 10, **changes})
                for regime, changes in regimes.items()
            ]
        swept: dict[str, tuple[str, Sequence[float]]] = {
            "epochs": ("epochs", s.epochs),
            "rho": ("rho", s.rhos),
            "devices": ("devices", s.devices),
            "cohort": ("cohort", s.cohorts),
        }
        if name == "tau-max":
            shares = {share: max(1, round(share * s.base.epochs)) for share in TAU_SHARES}
            return [self._swept("tau-max", share, {"tau_max": tau}) for share, tau in shares.items()]
        if name not in swept:
            return [Point(BASE, "", {})]
        field_name, values = swept[name]
        return [self._swept(name, value, {field_name: value}) for value in values]

    def _swept(self, name: str, value: float, changes: Mapping[str, Any]) -> Point:
        if self.setting.base.changed(changes).resolved() == self.setting.base.resolved():
            return Point(BASE, value, {})
        limits = {"rounds": self.setting.longest, "stop_at_target": True}
        return Point(f"{name}-{value:g}", value, {**changes, **limits})

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Methods with their policies."""
        return [
            (method, policy)
            for method in self.item.methods
            for policy in self.item.policies or [self.setting.base.changed({"method": method}).policy]
        ]

    def experiment(self, point: Point, method: str, policy: str, seed: int) -> Experiment:
        """One run."""
        return self.setting.base.changed({"method": method, "stragglers": policy, "seed": seed, **point.changes})

    def folder(self, point: Point, method: str, policy: str, seed: int) -> Path:
        """Where it is kept."""
        return self.out / "runs" / self.setting.name / point.name / f"{method}-{policy}" / f"seed-{seed}"

    def all(self) -> list[tuple[Experiment, Path]]:
        """All runs, seed by seed, so that what is broken off early is still paired."""
        return [
            (self.experiment(point, method, policy, seed), self.folder(point, method, policy, seed))
            for seed in self.seeds
            for point in self.points
            for method, policy in self.kinds
        ]

    @cached_property
    def found(self) -> list[dict[str, Any]]:
        """A row a run that is done: where it belongs, and its summary with the mean training loss at the end."""
        rows: list[dict[str, Any]] = []
        for seed in self.seeds:
            for point in self.points:
                for method, policy in self.kinds:
                    summary = summary_of(self.folder(point, method, policy, seed))
                    if summary:
                        rows.append({"point": point.name, "value": point.value, **summary})
        return rows

    def records(self, method: str, policy: str) -> list[Sequence[Record]]:
        """The rounds of every seed that is done, at the first point."""
        folders = [self.folder(self.points[0], method, policy, seed) for seed in self.seeds]
        return [read(folder).records for folder in folders if summary_of(folder)]

    def values(self, measure: str, method: str, policy: str, point: Point | None = None) -> dict[int, float | None]:
        """A measure by seed."""
        name = (point or self.points[0]).name
        return {
            row["seed"]: row.get(measure)
            for row in self.found
            if (row["method"], row["stragglers"], row["point"]) == (method, policy, name)
        }

    def limit(self, point: Point | None = None) -> int:
        """Rounds that a run at this point has to reach the target."""
        changes = (point or self.points[0]).changes
        return int(changes.get("rounds", self.setting.base.rounds))


def works(names: Sequence[str], chosen: Setting, seeds: Sequence[int], out: Path) -> list[Work]:
    """These items, those with fewer rounds first; 'all' is every one."""
    if "all" in names:
        names = list(ITEMS)
    for name in names:
        choose("ITEM", name, [*ITEMS, "all"])
    made = [Work(ITEMS[name], chosen, seeds, out) for name in dict.fromkeys(names)]
    return sorted(made, key=lambda work: sum(e.rounds for e, _ in work.all()))


def missing(all_works: Sequence[Work]) -> list[tuple[Experiment, Path]]:
    """The runs that are not done yet, each once."""
    runs = {folder: e for work in all_works for e, folder in work.all()}
    return [(e, folder) for folder, e in runs.items() if not summary_of(folder)]


def begun_otherwise(runs: Sequence[tuple[Experiment, Path]]) -> None:
    """Refuse folders that hold a run of another experiment: an older version's, or one somebody put there."""
    for e, folder in runs:
        file = folder / "experiment.toml"
        if file.is_file() and Experiment.load(file).resolved() != e.resolved():
            raise BadInput(f"--out: {str(folder)!r} holds another experiment than this item's; take another folder")


def performed(
    runs: Sequence[tuple[Experiment, Path]], data: Data | None, workers: Workers | None = None
) -> Generator[Step]:
    """Do runs one after the other; one that was interrupted goes on where it was."""
    for number, (e, folder) in enumerate(runs, start=1):
        begun = (folder / "experiment.toml").exists()
        for record in recorded(e, folder, resume=begun, data=data, workers=workers):
            yield Step(e, number, record)
        _close(folder)
        yield Step(e, number, None)


def _close(folder: Path) -> None:
    """Take note of what items need; then let go of the weights: hundreds of runs would fill a disk with them."""
    records = read(folder).records
    losses = [r.train_loss for r in records if r.train_loss is not None][-10:]
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["last_train_loss"] = sum(losses) / len(losses) if losses else None
    write_atomically(folder / "done.json", json.dumps(summary, indent=1) + "\n")
    tidy(folder)


def tidy(folder: Path) -> None:
    """Remove what only a run that is not over needs."""
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    (folder / "model.safetensors").unlink(missing_ok=True)


def summary_of(folder: Path) -> dict[str, Any]:
    """What a finished run found; nothing for one that is not."""
    file = folder / "done.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError:  # damaged: it is made again
        return {}


def _plain(text: str) -> str:
    return text.replace(", ", "-").replace(" ", "-").lower()
