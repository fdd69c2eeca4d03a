"""Several methods and policies over the same seeds: the runs, and one table of means and spreads."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.settings import BadInput, read_toml
from fedlga.core.types import Record
from fedlga.experiments.arms import Arm, check_different, pair_arms
from fedlga.experiments.config import Experiment
from fedlga.experiments.folder import check_free
from fedlga.experiments.measures import Measure, list_measures
from fedlga.experiments.records import EXPERIMENT, read_run, read_summary
from fedlga.experiments.run import run_and_record
from fedlga.experiments.statistics import half_interval
from fedlga.experiments.tables import format_latex, format_markdown, make_cells

if TYPE_CHECKING:
    from fedlga.backends.pool.workers import Workers
    from fedlga.experiments.tracking import Tracking
    from fedlga.learning.reading import TaskData


@dataclass(frozen=True)
class Plan:
    """What is compared: every experiment of the table, paired by seed."""

    base: Experiment
    changes: Mapping[str, Any]  # of base; a bare name goes to those methods and policies that have such a setting
    methods: Sequence[str]
    policies: Sequence[str]  # empty: each method's own
    seeds: Sequence[int]
    more_arms: Sequence[Arm] = field(default_factory=list[Arm])  # besides every method with every policy

    @cached_property
    def arms(self) -> list[Arm]:
        """What is compared, in the order asked for."""
        arms = [*pair_arms(self.methods, self.policies, self.base.stragglers), *self.more_arms]
        check_different(arms)
        return arms

    def experiments(self) -> list[Experiment]:
        """Return all runs: seed by seed, so that a table that is interrupted early is still paired."""
        experiments: list[Experiment] = []
        unused = set(self.changes)
        for seed in self.seeds:
            for arm in self.arms:
                experiment = arm.experiment(self.base, seed)
                known = experiment.select_known(self.changes)
                unused -= set(known)
                experiments.append(experiment.changed({**known, **arm.settings}))
        if unused:
            name = sorted(unused)[0]
            methods = dict.fromkeys(arm.method for arm in self.arms)
            raise BadInput(f"{name}: there is no such field in the experiment or in any of {', '.join(methods)}")
        return experiments

    def runs(self, out: Path) -> list[tuple[Arm, Experiment, Path]]:
        """Return every run with the arm that it belongs to and its folder, seed by seed."""
        arms = self.arms * len(self.seeds)
        return [(arm, e, run_folder(out, arm, e.seed)) for arm, e in zip(arms, self.experiments(), strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for comparison.toml."""
        lists = {"methods": list(self.methods), "policies": list(self.policies), "seeds": list(self.seeds)}
        arms = {"more_arms": [arm.as_dict() for arm in self.more_arms]} if self.more_arms else {}
        return {**lists, "changes": dict(self.changes), "base": self.base.as_dict(), **arms}

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Return the plan of a comparison to continue."""
        file = folder / "comparison.toml"
        if not file.is_file():
            raise BadInput(f"--resume: {str(folder)!r} holds no comparison; it takes the folder of one")
        try:
            values = read_toml(file.read_text(encoding="utf-8"), f"--resume: {str(file)!r} is damaged")
            base = Experiment.from_dict(values.pop("base"))
            arms = [Arm(**arm) for arm in values.pop("more_arms", [])]
            plan = cls(base=base, more_arms=arms, **values)
            if not plan.is_whole():
                raise TypeError("a list is of another type, or empty")
            return plan
        except (KeyError, TypeError, AttributeError, OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--resume: {str(file)!r} is damaged ({error})") from error

    def is_whole(self) -> bool:
        """Return whether all that was read from a file is of the right type, and there is something to run."""
        texts = [*as_list(self.methods), *as_list(self.policies)]
        seeds = as_list(self.seeds)
        return (
            isinstance(self.changes, dict)
            and all(isinstance(text, str) for text in texts)
            and bool(seeds)
            and all(type(seed) is int and seed >= 0 for seed in seeds)
            and bool(self.arms)
        )


def as_list(value: Any) -> list[Any]:
    """Return a list that was read from a file; TypeError if it is something else."""
    if not isinstance(value, list | tuple):
        raise TypeError(f"{value!r} is no list")
    return list(value)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def run_folder(out: Path, arm: Arm, seed: int) -> Path:
    """Return where one run of a comparison is kept."""
    return out / arm.label / f"seed-{seed}"


def start(plan: Plan, out: Path, data: TaskData) -> None:
    """Create the folder of a comparison, after checking that its runs can start."""
    import tomli_w

    from fedlga.experiments.simulation import check_fit

    check_fit(plan.experiments()[0], data)
    check_free(out)  # as late as possible: another process may have started
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "comparison.toml", tomli_w.dumps(plan.as_dict()))


@dataclass(frozen=True)
class Step:
    """One round of a comparison, or (`record` is None) the end of one of its runs."""

    experiment: Experiment
    number: int  # of the run, from 1
    record: Record | None


def run_plan(
    plan: Plan,
    out: Path,
    data: TaskData,
    workers: Workers | None = None,
    follow: Callable[[], Tracking | None] = lambda: None,
) -> Generator[Step]:
    """Do the runs that are not done yet. `follow` gives the trackers of a run."""
    for number, (_, e, folder) in enumerate(plan.runs(out), start=1):
        if not read_summary(folder):
            started = (folder / EXPERIMENT).exists()
            for record in run_and_record(e, folder, resume=started, data=data, workers=workers, tracking=follow()):
                yield Step(e, number, record)
            write_tables(plan, out)
        yield Step(e, number, None)
    write_tables(plan, out)


def make_table(plan: Plan, out: Path) -> list[dict[str, Any]]:
    """Return a row for each arm over the seeds that are done: mean, standard deviation, half of the 95 % interval.

    A run that never reached the target has no rounds to it: `reached` counts those that did, and the mean is theirs.
    `rounds_more` is the mean difference to the first row over the seeds on which both reached it. If no arm has a
    target, rows have nothing about one.
    """
    rows: list[dict[str, Any]] = []
    first: dict[int, float] = {}
    by_arm = read_summaries(plan, out)
    targets = find_targets(by_arm, plan)
    measures = _list_for(find_metric(by_arm, plan.base), targets)
    for arm in plan.arms:
        runs = by_arm[arm.label]
        rounds = {seed: s["rounds_to_target"] for seed, s in runs.items() if s["rounds_to_target"] is not None}
        row: dict[str, Any] = {"method": arm.method, "stragglers": arm.policy, "settings": arm.settings_text}
        row |= {"seeds": len(runs)}
        if any_target(targets):
            row["reached"] = None if targets[arm.label] is None else len(rounds)
        for measure in (m.name for m in measures if m.table):
            values = [s[measure] for s in runs.values() if s.get(measure) is not None]
            row[measure] = statistics.fmean(values) if values else None
            row[f"{measure}_sd"] = statistics.stdev(values) if len(values) > 1 else None
            row[f"{measure}_half"] = half_interval(values)
        first = rounds if not rows else first
        both = [rounds[seed] - first[seed] for seed in rounds if seed in first]
        if any_target(targets):
            row["rounds_more"] = statistics.fmean(both) if both else None
            row["rounds_more_sd"] = statistics.stdev(both) if len(both) > 1 else None
        rows.append(row)
    return rows


def find_targets(summaries: Mapping[str, Mapping[int, Mapping[str, Any]]], plan: Plan) -> dict[str, float | None]:
    """Return the target of each arm, by its label; None: it has none. That of a task may be known from a run only."""
    planned = {arm.label: e.target for arm, e in zip(plan.arms, plan.experiments(), strict=False)}
    return {
        label: next((s.get("target", target) for s in summaries[label].values()), target)
        for label, target in planned.items()
    }


def any_target(targets: Mapping[str, float | None]) -> bool:
    """Return whether any arm has a target."""
    return any(target is not None for target in targets.values())


def _list_for(metric: str, targets: Mapping[str, float | None]) -> list[Measure]:
    """Return the measures that say something about runs with these targets."""
    return [m for m in list_measures(metric) if any_target(targets) or not m.to_target]


def find_metric(summaries: Mapping[str, Mapping[int, Mapping[str, Any]]], base: Experiment) -> str:
    """Return the target metric of a comparison: a task's is known when its first run is done."""
    names = (str(s.get("metric", base.target_metric)) for by_seed in summaries.values() for s in by_seed.values())
    return next(names, base.target_metric)


def read_summaries(plan: Plan, out: Path) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the summaries of all runs that are done, by the label of their arm and by seed."""
    summaries: dict[str, dict[int, dict[str, Any]]] = {arm.label: {} for arm in plan.arms}
    for arm, e, folder in plan.runs(out):
        if summary := read_summary(folder):
            summaries[arm.label][e.seed] = summary
    return summaries


def read_rounds(plan: Plan, out: Path) -> dict[str, dict[int, Sequence[Record]]]:
    """Return the rounds of all runs that are done, by arm ('METHOD POLICY SETTINGS') and by seed."""
    rounds: dict[str, dict[int, Sequence[Record]]] = {}
    for arm, e, folder in plan.runs(out):
        if read_summary(folder):
            name = " ".join(filter(None, (arm.method, arm.policy, arm.settings_text)))
            rounds.setdefault(name, {})[e.seed] = read_run(folder).records
    return rounds


def write_tables(plan: Plan, out: Path) -> None:
    """Write comparison.csv (means; .md and .tex: for a text), runs.csv (every run) and comparison.json (both)."""
    rows = make_table(plan, out)
    summaries = read_summaries(plan, out)
    measures = _list_for(find_metric(summaries, plan.base), find_targets(summaries, plan))
    names = ["seed", "rounds", *(m.name for m in measures), "diverged"]
    runs = [
        {"method": arm.method, "stragglers": arm.policy, "settings": arm.settings_text}
        | {name: summary.get(name) for name in names}
        for arm, _, folder in plan.runs(out)
        if (summary := read_summary(folder))
    ]
    cells = make_cells(rows, plan.experiments()[0], find_metric(summaries, plan.base))
    write_atomically(out / "comparison.csv", format_csv(rows))
    write_atomically(out / "comparison.md", format_markdown(cells))
    write_atomically(out / "comparison.tex", format_latex(cells))
    write_atomically(out / "runs.csv", format_csv(runs))
    write_atomically(out / "comparison.json", json.dumps({"table": rows, "runs": runs}, indent=2) + "\n")
