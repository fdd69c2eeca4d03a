"""The best setting of each arm, by the same search for all, and what it gives on seeds that chose nothing.

tuning.toml         the plan
search/ARM/POINT/   the runs of the search: every point of the arm's grid, on the tuning seeds
tuning.csv          every point with its score on each tuning seed, and what became of it
choice.toml         the arms with their chosen settings
held-out/           the chosen arms on the held-out seeds: a comparison, with its tables

What to run next is a function of the results that are there. So an interrupted search continues, and no result of a
held-out seed can enter a choice: the functions of `search` never see one.
"""

from __future__ import annotations

import statistics
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.settings import BadInput, read_toml, suggest
from fedlga.experiments.arms import Arm, check_different, format_settings
from fedlga.experiments.compare import Plan, as_list, write_tables
from fedlga.experiments.config import Experiment, experiment_fields, names_in_use
from fedlga.experiments.criteria import CRITERIA, Criterion
from fedlga.experiments.parallel import Job, Outcome, RunPool
from fedlga.experiments.records import SUMMARY, read_summary
from fedlga.experiments.search import MOST_WIDENINGS, Grid, Point, Scores, SearchState, grid_points, next_trials
from fedlga.experiments.tracking import Track

PLAN, CHOICE, TABLE, SEARCH, HELD_OUT = "tuning.toml", "choice.toml", "tuning.csv", "search", "held-out"
FIXED = ("method", "stragglers", "seed", "backend")  # what a search sets itself: no grid can hold it


@dataclass(frozen=True)
class TuningPlan:
    """What is tuned, over which grid, by which criterion, on which seeds."""

    base: Experiment
    arms: Sequence[Arm]
    grid: Grid  # for every arm; an arm takes the settings that it has
    criterion: Criterion
    seeds: Sequence[int]  # for the choice
    held_out: Sequence[int]  # for what is reported
    widenings: int = MOST_WIDENINGS

    def __post_init__(self) -> None:
        check_different(self.arms)
        if both := sorted(set(self.seeds) & set(self.held_out)):
            raise BadInput(f"--held-out: seed {both[0]} is one of --seeds; a seed that chose a setting cannot judge it")
        if not self.seeds:
            raise BadInput("--seeds: got none; it takes at least one")
        if self.widenings < 0:
            raise BadInput(f"--widen: got {self.widenings}; it takes a whole number of at least 0")
        if not self.grid:
            raise BadInput("--grid: got none; it takes a setting with its values, such as lr=0.01,0.03,0.1")
        for name, values in self.grid.items():
            if name in FIXED:
                raise BadInput(f"--grid: {name} is what tune varies itself; see fedlga tune --help")
            if not values:
                raise BadInput(f"--grid: got no value for {name}; it takes at least one")
            texts = [format_settings({name: value}) for value in values]
            if repeated := [text for text in texts if texts.count(text) > 1]:  # they would share a folder
                raise BadInput(f"--grid: {repeated[0]} is there twice; each value is tried once")
        known = set[str]()
        for arm in self.arms:
            known |= set(self.grid_of(arm))
            for point in grid_points(self.grid_of(arm)):
                self.experiment(arm, point, self.seeds[0])  # raises BadInput for a value that does not fit
        if unused := set(self.grid) - known:
            name = sorted(unused)[0]
            hint = suggest(name, [f.name for f in experiment_fields()])
            raise BadInput(f"--grid: no arm has a setting {name!r}; {hint}")

    def grid_of(self, arm: Arm) -> Grid:
        """Return the part of the grid that an arm has, without what the arm itself fixes.

        'owner.name' is for the arms that use the owner: adam.eta_g for those whose server optimiser is adam.
        """
        e = arm.experiment(self.base, self.seeds[0])
        used = set(names_in_use(e.context()).values())
        plain = {name: values[0] for name, values in self.grid.items() if "." not in name}
        known = {*e.select_known(plain), *(name for name in self.grid if name.rpartition(".")[0] in used)}
        return {name: values for name, values in self.grid.items() if name in known and name not in arm.settings}

    def experiment(self, arm: Arm, point: Point, seed: int) -> Experiment:
        """Return one run of the search."""
        early = {"stop_at_target": True} if self.criterion.name == "time" else {}
        return arm.add(dict(point)).experiment(self.base, seed).changed({"backend": "serial", **early})

    def fits(self, arm: Arm, point: Point) -> bool:
        """Return whether an arm can have these settings."""
        try:
            self.experiment(arm, point, self.seeds[0])
        except BadInput:
            return False
        return True

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for tuning.toml."""
        return {
            "by": self.criterion.name,
            "seeds": list(self.seeds),
            "held_out": list(self.held_out),
            "widenings": self.widenings,
            "grid": {name: list(values) for name, values in self.grid.items()},
            "arms": [arm.as_dict() for arm in self.arms],
            "base": self.base.as_dict(),
        }

    @classmethod
    def load(cls, folder: Path, option: str = "--resume") -> TuningPlan:
        """Return the plan of a search: to continue it, or for another option."""
        values = _read_toml(folder / PLAN, option)
        try:
            return cls(
                base=Experiment.from_dict(values["base"]),
                arms=[Arm(**arm) for arm in values["arms"]],
                grid=values["grid"],
                criterion=CRITERIA[values["by"]],
                seeds=[_check_int(seed) for seed in as_list(values["seeds"])],
                held_out=[_check_int(seed) for seed in as_list(values["held_out"])],
                widenings=_check_int(values["widenings"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{option}: {str(folder / PLAN)!r} is damaged ({error!r})") from error


@dataclass(frozen=True)
class Progress:
    """A run of a search or of its held-out seeds that is over."""

    phase: str  # "search" or "held-out"
    label: str
    outcome: Outcome


def run_tuning(
    plan: TuningPlan,
    out: Path,
    *,
    processes: int = 0,
    data_dir: str | Path | None = None,
    track: Track | None = None,
) -> Generator[Progress]:
    """Search the best point of every arm, then run it on the held-out seeds. What is there is not run again.

    `track` names what follows every run: of the search, and on the held-out seeds.
    """
    with RunPool(processes, data_dir, track) as pool:
        while jobs := _search_jobs(plan, out):
            arm_of = {job.folder: arm for arm, job in jobs}
            for outcome in pool.run([job for _, job in jobs]):
                label = f"{arm_of[outcome.job.folder].label} {outcome.job.folder.parent.name}"
                yield Progress(SEARCH, label, outcome)
            write_search(plan, out)
        write_search(plan, out)
        chosen = held_out_plan(plan, out)
        runs = chosen.runs(out / HELD_OUT)
        arm_of = {folder: arm for arm, _, folder in runs}
        for outcome in pool.run([Job(e, folder) for _, e, folder in runs]):
            yield Progress(HELD_OUT, arm_of[outcome.job.folder].label, outcome)
    write_tables(chosen, out / HELD_OUT)


def start(plan: TuningPlan, out: Path) -> None:
    """Create the folder of a search."""
    import tomli_w

    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / PLAN, tomli_w.dumps(plan.as_dict()))


def search_folder(out: Path, arm: Arm, point: Point, seed: int) -> Path:
    """Return where one run of the search is kept."""
    return out / SEARCH / arm.label / format_settings(dict(point)).replace(" ", ",") / f"seed-{seed}"


def read_scores(plan: TuningPlan, out: Path, arm: Arm, points: Sequence[Point]) -> tuple[Scores, Criterion]:
    """Return the costs of an arm's runs that are done, on the tuning seeds; and the criterion for their metric."""
    scores: dict[Point, dict[int, float]] = {}
    criterion = plan.criterion
    for point in points:
        for seed in plan.seeds:
            if summary := read_summary(search_folder(out, arm, point, seed)):
                folder = search_folder(out, arm, point, seed)
                try:
                    cost = plan.criterion.cost(plan.experiment(arm, point, seed), summary)
                except (KeyError, TypeError, OverflowError) as error:
                    raise BadInput(f"--resume: {str(folder / SUMMARY)!r} is damaged ({error!r})") from error
                scores.setdefault(point, {})[seed] = cost
                criterion = plan.criterion.for_metric(str(summary.get("metric", "accuracy")))
    return scores, criterion


def read_search(plan: TuningPlan, out: Path, arm: Arm) -> tuple[SearchState, Scores]:
    """Return how far an arm's search is, and its scores."""
    grid = plan.grid_of(arm)
    points = grid_points(grid)
    while True:  # the scores of a point beyond the grid may be there already
        scores, criterion = read_scores(plan, out, arm, points)
        state = next_trials(grid, scores, plan.seeds, criterion, plan.widenings, lambda point: plan.fits(arm, point))
        if len(state.points) == len(points):
            return state, scores
        points = state.points


def _search_jobs(plan: TuningPlan, out: Path) -> list[tuple[Arm, Job]]:
    """Return the runs to do next, over all arms."""
    return [
        (arm, Job(plan.experiment(arm, t.point, t.seed), search_folder(out, arm, t.point, t.seed)))
        for arm in plan.arms
        for t in read_search(plan, out, arm)[0].trials
    ]


def chosen_arms(plan: TuningPlan, out: Path) -> list[Arm]:
    """Return the arms with their chosen settings; the search must be over."""
    choices = [(arm, read_search(plan, out, arm)[0].best) for arm in plan.arms]
    return [arm.add(dict(best)) for arm, best in choices if best is not None]


def held_out_plan(plan: TuningPlan, out: Path) -> Plan:
    """Return the comparison of the chosen arms on the held-out seeds."""
    base = plan.base.changed({"backend": "serial"})
    return Plan(base, {}, [], [], plan.held_out, more_arms=_each_once(chosen_arms(plan, out)))


def _each_once(arms: Sequence[Arm]) -> list[Arm]:
    """Return the arms without repeats: an arm may be tuned to what another one has from the start."""
    return [arm for index, arm in enumerate(arms) if arm not in arms[:index]]


def write_search(plan: TuningPlan, out: Path) -> None:
    """Write tuning.csv: every point with its scores; and choice.toml, for the arms whose search is over."""
    import tomli_w

    rows: list[dict[str, Any]] = []
    choices: list[dict[str, Any]] = []
    for arm in plan.arms:
        state, scores = read_search(plan, out, arm)
        if state.best is not None:
            edge = {"at_edge": list(state.at_edge)} if state.at_edge else {}
            choices.append({**arm.add(dict(state.best)).as_dict(), "runs": sum(map(len, scores.values())), **edge})
        for point in sorted(scores, key=str):
            costs = [scores[point].get(seed) for seed in plan.seeds]
            known = [cost for cost in costs if cost is not None]
            rows.append(
                {"arm": arm.label, "settings": format_settings(dict(point)), "mean": statistics.fmean(known)}
                | {f"seed {seed}": cost for seed, cost in zip(plan.seeds, costs, strict=True)}
                | {"chosen": point == state.best}
            )
    write_atomically(out / TABLE, format_csv(rows))
    values = {"by": plan.criterion.name, "seeds": list(plan.seeds), "base": plan.base.as_dict(), "arms": choices}
    write_atomically(out / CHOICE, tomli_w.dumps(values))


def plan_tuned(folder: Path, changes: Mapping[str, Any], seeds: Sequence[int]) -> Plan:
    """Return a comparison of the arms that a finished search chose, on seeds that it did not choose by."""
    tuning, values = TuningPlan.load(folder, "--tuned"), _read_toml(folder / CHOICE, "--tuned")
    try:
        arms = [Arm(arm["method"], arm["policy"], dict(arm["settings"])) for arm in values["arms"]]
    except (KeyError, TypeError) as error:
        raise BadInput(f"--tuned: {str(folder / CHOICE)!r} is damaged ({error!r})") from error
    if len(arms) < len(tuning.arms):
        raise BadInput(f"--tuned: the search in {str(folder)!r} is not over; fedlga tune --resume {folder}")
    if both := sorted(set(tuning.seeds) & set(seeds)):
        raise BadInput(f"--seeds: seed {both[0]} chose the settings in {str(folder)!r}; take others")
    return Plan(tuning.base, changes, [], [], seeds, more_arms=_each_once(arms))


def _read_toml(file: Path, option: str) -> dict[str, Any]:
    if not file.is_file():
        raise BadInput(f"{option}: {str(file.parent)!r} holds no search; it takes the folder of fedlga tune")
    try:
        return read_toml(file.read_text(encoding="utf-8"), f"{option}: {str(file)!r} is damaged")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{option}: {str(file)!r} is damaged ({error})") from error


def _check_int(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no whole number of at least 0")
    return value
