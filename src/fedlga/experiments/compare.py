"""Several methods and policies over the same seeds: the runs, and one table of means and spreads."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .experiment import Experiment
from .methods import method_class
from .runs import check_free, read, recorded, table_as_csv, write_atomically
from .settings import BadInput, choose
from .stragglers import POLICIES
from .types import Record

if TYPE_CHECKING:
    from .backends.pool import Workers
    from .data.datasets import Data

TO_TARGET = ("rounds_to_target", "best_accuracy", "seconds_to_target", "simulated_seconds_to_target")
AT_THE_END = ("last_accuracy", "last_accuracy_slow", "last_accuracy_worst", "approximation_error", "simulated_seconds")
MEASURES = (*TO_TARGET, *AT_THE_END)
RAW = ("method", "stragglers", "seed", *MEASURES, "final_accuracy", "rounds", "seconds_per_round", "diverged")


@dataclass(frozen=True)
class Plan:
    """What is compared: every experiment of the table, paired by seed."""

    base: Experiment
    changes: Mapping[str, Any]  # on top of base; a bare name goes to those methods that have it
    methods: Sequence[str]
    policies: Sequence[str]  # empty: each method's own
    seeds: Sequence[int]

    def pairs(self) -> list[tuple[str, str]]:
        """Methods and policies that go together, in the order asked for."""
        found: list[tuple[str, str]] = []
        for policy in self.policies:
            choose("stragglers", policy, POLICIES)
        for method in self.methods:
            takes = method_class(method).policies
            fitting = [p for p in self.policies if p in takes] if self.policies else [self.base.stragglers or takes[0]]
            if not fitting:
                raise BadInput(f"--stragglers: method {method} takes {', '.join(takes)}; got {','.join(self.policies)}")
            found += [(method, policy) for policy in fitting]
        return found

    def experiments(self) -> list[Experiment]:
        """All runs: seed by seed, so that a table broken off early is still paired."""
        made: list[Experiment] = []
        unused = set(self.changes)
        for seed in self.seeds:
            for method, policy in self.pairs():
                experiment = self.base.changed({"method": method, "stragglers": policy, "seed": seed})
                fitting = {name: value for name, value in self.changes.items() if experiment.has(name)}
                unused -= set(fitting)
                made.append(experiment.changed(fitting))
        if unused:
            name = sorted(unused)[0]
            raise BadInput(f"{name}: there is no such field in the experiment or in any of {', '.join(self.methods)}")
        return made

    def as_dict(self) -> dict[str, Any]:
        """Plain values, to recognise a comparison by."""
        lists = {"methods": list(self.methods), "policies": list(self.policies), "seeds": list(self.seeds)}
        return {**lists, "changes": dict(self.changes), "base": self.base.as_dict()}

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """The plan of a comparison to go on with."""
        file = folder / "comparison.toml"
        if not file.is_file():
            raise BadInput(f"--resume: {str(folder)!r} holds no comparison; it takes the folder of one")
        try:
            values = tomllib.loads(file.read_text(encoding="utf-8"))
            base = Experiment.from_dict(values.pop("base"))
            return cls(base=base, **values)
        except (tomllib.TOMLDecodeError, KeyError, TypeError) as error:
            raise BadInput(f"--resume: {str(file)!r} is damaged ({error})") from error


def folder_of(out: Path, e: Experiment) -> Path:
    """Where one run of a comparison is kept."""
    return out / f"{e.method.replace(':', '.')}-{e.policy}" / f"seed-{e.seed}"


def begin(plan: Plan, out: Path, data: Data) -> None:
    """Make the folder of a comparison, once it is sure that its runs can start."""
    import tomli_w

    from .simulation import check

    check(plan.experiments()[0], data)
    check_free(out)  # as late as can be: somebody else may have begun
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "comparison.toml", tomli_w.dumps(plan.as_dict()))


@dataclass(frozen=True)
class Step:
    """One round of a comparison, or (`record` is None) the end of one of its runs."""

    experiment: Experiment
    number: int  # of the run, from 1
    record: Record | None


def compared(plan: Plan, out: Path, data: Data, workers: Workers | None = None) -> Generator[Step]:
    """Do the runs that are not done yet."""
    for number, e in enumerate(plan.experiments(), start=1):
        folder = folder_of(out, e)
        begun = (folder / "experiment.toml").exists()
        if not _finished(folder):
            for record in recorded(e, folder, resume=begun, data=data, workers=workers):
                yield Step(e, number, record)
            write(plan, out)
        yield Step(e, number, None)
    write(plan, out)


def table(plan: Plan, out: Path) -> list[dict[str, Any]]:
    """A row for each method and policy: mean and standard deviation over the seeds that are done.

    A run that never reached the target has no rounds to it: `reached` counts those that did, and the mean is theirs.
    `rounds_more` is the mean difference to the first row over the seeds on which both reached it.
    """
    rows: list[dict[str, Any]] = []
    first: dict[int, float] = {}
    found = summaries(plan, out)
    for method, policy in plan.pairs():
        runs = {s["seed"]: s for s in found if (s["method"], s["stragglers"]) == (method, policy)}
        rounds = {seed: s["rounds_to_target"] for seed, s in runs.items() if s["rounds_to_target"] is not None}
        row: dict[str, Any] = {"method": method, "stragglers": policy, "seeds": len(runs), "reached": len(rounds)}
        for measure in MEASURES:
            values = [s[measure] for s in runs.values() if s.get(measure) is not None]
            row[measure] = statistics.fmean(values) if values else None
            row[f"{measure}_sd"] = statistics.stdev(values) if len(values) > 1 else None
        first = rounds if not rows else first
        both = [rounds[seed] - first[seed] for seed in rounds if seed in first]
        row["rounds_more"] = statistics.fmean(both) if both else None
        row["rounds_more_sd"] = statistics.stdev(both) if len(both) > 1 else None
        rows.append(row)
    return rows


def summaries(plan: Plan, out: Path) -> list[dict[str, Any]]:
    """The summaries of all runs that are done."""
    folders = [folder_of(out, e) for e in plan.experiments()]
    return [found for folder in folders if (found := _summary(folder)).get("finished")]


def draw(plan: Plan, out: Path) -> list[Path]:
    """comparison.png and comparison.svg: accuracy over simulated time, of the runs that are done."""
    from .figures import accuracy_over_time

    curves: dict[tuple[str, str], list[Sequence[Record]]] = {}
    for e in plan.experiments():
        if _finished(folder_of(out, e)):
            curves.setdefault((e.method, e.policy), []).append(read(folder_of(out, e)).records)
    files = [out / "comparison.png", out / "comparison.svg"]
    if curves:
        accuracy_over_time(curves, plan.experiments()[0].target, files)
    return files if curves else []


def _finished(folder: Path) -> bool:
    """Whether a run was brought to its end, its summary written."""
    return bool(_summary(folder).get("finished"))


def _summary(folder: Path) -> dict[str, Any]:
    file = folder / "summary.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def write(plan: Plan, out: Path) -> None:
    """comparison.csv (means), runs.csv (every run) and comparison.json (both)."""
    rows, runs = table(plan, out), [{name: s.get(name) for name in RAW} for s in summaries(plan, out)]
    write_atomically(out / "comparison.csv", table_as_csv(rows))
    write_atomically(out / "runs.csv", table_as_csv(runs))
    write_atomically(out / "comparison.json", json.dumps({"table": rows, "runs": runs}, indent=2) + "\n")
