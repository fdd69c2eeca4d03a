"""The runs that a page is about: found in folders, grouped by experiment, named by what they differ in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.labels import list_settings
from fedlga.experiments.records import EXPERIMENT, Run, read_run
from fedlga.experiments.statistics import Estimate
from fedlga.report.style import METHOD_NAMES

MOST_SETTINGS = 3  # in a label, unless more are needed to tell groups apart
FIRST_NAMED = ("task", "dataset", "model", "lr", "eta_g", "server_optimizer", "fleet", "schedule")  # in a label
NEVER_NAMED = {"seed", "method", "stragglers", "metric", "better", "backend", "workers", "compile"}  # or said elsewhere


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

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, in order."""
        return sorted(run.experiment.seed for run in self.runs)

    def estimate(self, measure: str) -> Estimate:
        """Return the mean of a measure over the seeds."""
        return Estimate.of([run.summary.get(measure) for run in self.runs])


def collect_runs(folders: Sequence[Path]) -> list[Group]:
    """Return the runs in these folders and below, grouped by experiment."""
    runs: dict[Path, Run] = {}
    for folder in folders:
        check_folder(folder)
        read = [read_run(run_folder) for run_folder in find_run_folders(folder)]
        runs |= {run.folder.resolve(): run for run in read if run.records}
        if not any(run.records for run in read):
            raise BadInput(f"DIR: {str(folder)!r} holds no run with a finished round")
    together: dict[str, list[Run]] = {}
    for run in runs.values():
        members = together.setdefault(group_key(run.experiment), [])
        same = next((i for i, other in enumerate(members) if other.experiment.seed == run.experiment.seed), None)
        if same is None:
            members.append(run)
        elif len(run.records) > len(members[same].records):  # the same run twice counts once: the longer one
            members[same] = run
    labels = name_experiments([members[0].experiment for members in together.values()])
    return [Group(label, members) for label, members in zip(labels, together.values(), strict=True)]


def check_folder(folder: Path) -> None:
    """Raise BadInput unless this is a folder."""
    if not folder.is_dir():
        raise BadInput(f"DIR: {str(folder)!r} is no folder; it takes those of runs or comparisons")


def find_run_folders(folder: Path) -> list[Path]:
    """Return all run folders below one, or itself if it is one; what is inside a run folder is no other run.

    Runs may be going on: os.walk tolerates folders that vanish, rglob does not.
    """
    found: list[Path] = []
    for path, below, files in os.walk(folder):
        if EXPERIMENT in files:
            found.append(Path(path))
            below.clear()
    return sorted(found)


def group_key(experiment: Experiment) -> str:
    """Return a text that is the same for experiments that differ in nothing but the seed."""
    return experiment.resolved().changed({"seed": 0}).to_toml()


def name_experiments(experiments: Sequence[Experiment]) -> list[str]:
    """Return method and policy of each, and the settings in which they differ.

    A setting that only repeats another one (each data set with its own number of devices) is left out, and beyond a
    few those that are not needed to tell the experiments apart.
    """
    if not experiments:
        return []
    resolved = [e.resolved() for e in experiments]
    settings = [list_settings(e) for e in resolved]
    kinds = [(e.method, e.policy) for e in resolved]
    differ = list_differing(settings)
    shown: list[str] = []
    partitions: set[tuple[int, ...]] = set()
    for name in differ:
        partition = _partition_by([repr(values.get(name)) for values in settings])
        apart = len({(kind, *(repr(v.get(n)) for n in shown)) for kind, v in zip(kinds, settings, strict=True)})
        better = len({(k, *(repr(v.get(n)) for n in (*shown, name))) for k, v in zip(kinds, settings, strict=True)})
        new = partition not in partitions and len(shown) < MOST_SETTINGS
        if better > apart or (new and not _is_given_by_subject(name, resolved, settings)):
            shown.append(name)
            partitions.add(partition)
    return [
        ", ".join([f"{name_method(e.method)} ({e.policy})", *(_name_setting(n, v[n]) for n in shown if n in v)])
        for e, v in zip(resolved, settings, strict=True)
    ]


def list_differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the settings that are not the same in all, the most telling first."""
    names = {name for values in settings for name in values} - NEVER_NAMED
    differ = [name for name in names if len({repr(v[name]) for v in settings if name in v}) > 1]
    rank = {name: index for index, name in enumerate(FIRST_NAMED)}
    return sorted(differ, key=lambda name: (rank.get(name, len(rank)), name))


def _partition_by(values: Sequence[str]) -> tuple[int, ...]:
    """Return which of the values are the same: the index of the first of each."""
    return tuple(values.index(value) for value in values)


def _is_given_by_subject(name: str, experiments: Sequence[Experiment], settings: Sequence[dict[str, Any]]) -> bool:
    """Return whether a setting only differs because what is learned does: it comes with the data."""
    if name in ("task", "dataset") or len({e.subject for e in experiments}) == 1:
        return False
    values: dict[str, set[str]] = {}
    for e, v in zip(experiments, settings, strict=True):
        values.setdefault(e.subject, set()).add(repr(v.get(name)))
    return all(len(each) == 1 for each in values.values())


def _name_setting(name: str, value: Any) -> str:
    if name == "task":
        return Path(str(value)).stem
    return str(value) if name in ("dataset", "model") else f"{name.rpartition('.')[2]} {value}"


def name_method(method: str) -> str:
    """Return a method's name as its paper writes it."""
    return METHOD_NAMES.get(method, method)
