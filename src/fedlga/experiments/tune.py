"""The best setting of each arm, by the same search for all, and what it gives on seeds that chose nothing.

tuning.toml         the plan
search/ARM/POINT/   the runs of the search: every point of the arm's grid, on the tuning seeds
tuning.csv          every point with its score on each tuning seed, and what became of it
choice.toml         the arms with their chosen settings
held-out/           the chosen arms on the held-out seeds: a comparison, with its tables

What to run next is a function of the results that are there. So an interrupted search continues, and no result of a
held-out seed can enter a choice: `next_trials` and `choose` never see one.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tomllib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.settings import BadInput
from fedlga.experiments.arms import Arm, check_different, format_settings
from fedlga.experiments.compare import Plan, write_tables
from fedlga.experiments.config import Experiment, names_in_use
from fedlga.experiments.measures import is_percentage
from fedlga.experiments.parallel import Job, Outcome, RunPool
from fedlga.experiments.records import read_summary

PLAN, CHOICE, TABLE, SEARCH, HELD_OUT = "tuning.toml", "choice.toml", "tuning.csv", "search", "held-out"
MOST_WIDENINGS = 3  # times that a grid grows because the best point is at its edge
FIXED = ("method", "stragglers", "seed", "backend")  # what a search sets itself: no grid can hold it
NO_TARGET = "--by: got 'time', and the experiment has no target; set one with --target"

Point = tuple[tuple[str, Any], ...]  # settings with their values: (("lr", 0.03), ("mu", 0.1))
Grid = Mapping[str, Sequence[Any]]
Scores = Mapping[Point, Mapping[int, float]]  # by point and tuning seed; lower is better


@dataclass(frozen=True)
class Criterion:
    """What makes a setting the best: a cost to make small."""

    name: str
    meaning: str  # with {metric} for the name of the target metric
    tie: float  # points whose mean cost is this close to the best are tied: the one with the least spread is chosen
    margin: float  # after each seed, points that are further behind the best than this leave the race
    relative: bool  # tie and margin are shares of the best cost, and no costs themselves

    def describe(self, metric: str) -> str:
        """Return what a setting is chosen by, in words."""
        return self.meaning.format(metric=metric)

    def for_metric(self, metric: str) -> Criterion:
        """Return the criterion with a tie and a margin that fit the metric: fixed ones are for percentages only."""
        if self.relative or is_percentage(metric):
            return self
        return replace(self, tie=CRITERIA["metric"].tie, margin=CRITERIA["metric"].margin, relative=True)

    def cost(self, e: Experiment, summary: Mapping[str, Any]) -> float:
        """Return the cost of one run: infinite if it diverged, or if what it is judged by is no number."""
        metric = str(summary.get("metric", "accuracy"))
        if summary["diverged"]:
            return math.inf
        if self.name == "time":
            return _time_to_target(metric, summary, summary.get("target", e.target))
        value = summary[f"closing_{metric}_slow" if self.name == "slow" else f"closing_{metric}"]
        if value is None and self.name == "slow":
            raise refuse_slow(metric, f"{metric} is not known for the devices that are always slow")
        if value is None or not math.isfinite(value):
            return math.inf
        if summary.get("better") == "lower":
            return value
        return 1 - value if is_percentage(metric) else -value

    def limit(self, costs: Collection[float], room: float) -> float:
        """Return the highest cost that is at most `room` above the best of the costs.

        A share of the best needs a best above zero. Where there is none, as for an R² that is around zero, it is a
        share of the distance between the best and the median; or between the best and zero, if that is further.
        """
        best = min(costs)
        if not self.relative:
            return best + room
        if best > 0:
            return best + room * best
        median = statistics.median(cost for cost in costs if math.isfinite(cost))
        return best + room * (max(median, 0.0) - best)


def _time_to_target(metric: str, summary: Mapping[str, Any], target: float | None) -> float:
    """Return the simulated seconds to the target.

    A run that never reached it counts as later than every run that did; and the later, the further it was away.
    """
    if target is None:
        raise BadInput(NO_TARGET)
    seconds, best = summary["simulated_seconds_to_target"], summary[f"best_{metric}"]
    if seconds is not None:
        return seconds
    missing = abs(target - best) if best is not None and math.isfinite(best) else abs(target)
    return summary["simulated_seconds"] * (1 + (missing if is_percentage(metric) else missing / (abs(target) or 1.0)))


CRITERIA = {
    c.name: c
    for c in (
        Criterion("accuracy", "mean {metric} over the last fifth of the simulated time", 0.002, 0.03, relative=False),
        Criterion("metric", "mean {metric} over the last fifth of the simulated time", 0.002, 0.1, relative=True),
        Criterion(
            "slow",
            "mean {metric} over the last fifth of the simulated time, on data like that of the always slow devices",
            0.002,
            0.03,
            relative=False,
        ),
        Criterion("time", "simulated seconds to the target", 0.02, 0.5, relative=True),
    )
}


def find_criterion(by: str | None, metric: str | None) -> Criterion:
    """Return the criterion that --by names; any other name can only be the target metric's: see `check_by`.

    `metric` is the target metric, or None if only the data of a task will tell.
    """
    by = by or ("accuracy" if metric == "accuracy" else "metric")
    return CRITERIA.get(by, CRITERIA["metric"])


def check_by(by: str, metric: str, metrics: Collection[str]) -> None:
    """Raise BadInput if --by names neither a criterion nor the target metric; `metrics` are all that there are."""
    if by in (metric, "metric", "slow", "time"):
        return
    other = f", or {by} with --set metric={by}" if by in metrics else ""
    raise BadInput(f"--by: got {by!r}, and the target metric is {metric}; it takes {metric}, slow or time{other}")


def refuse_slow(metric: str, why: str = "no device of this fleet is always slow") -> BadInput:
    """Return the error for --by slow where nothing is known about slow devices."""
    return BadInput(f"--by: got 'slow', and {why}; it takes {metric} or time")


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
            raise BadInput(f"--grid: no arm has a setting {sorted(unused)[0]!r}")

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
                seeds=values["seeds"],
                held_out=values["held_out"],
                widenings=values["widenings"],
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{option}: {str(folder / PLAN)!r} is damaged ({error!r})") from error


# What to run next, and what to choose: functions of the scores alone


def grid_points(grid: Grid) -> list[Point]:
    """Return all points of a grid."""
    return [tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@dataclass(frozen=True)
class Trial:
    """One run that the search asks for."""

    point: Point
    seed: int


@dataclass(frozen=True)
class SearchState:
    """How far the search of one arm is."""

    points: Sequence[Point]  # the grid, and what was added beyond its edges
    trials: Sequence[Trial]  # to run next; empty: the search is over
    best: Point | None  # the choice, when the search is over
    at_edge: Sequence[str]  # settings in which a neighbour of the best was not tried, such as one beyond the highest


def next_trials(
    grid: Grid,
    scores: Scores,
    seeds: Sequence[int],
    criterion: Criterion,
    widenings: int = MOST_WIDENINGS,
    fits: Callable[[Point], bool] = lambda point: True,
) -> SearchState:
    """Return what to run next, given the scores so far; when there is nothing left to run, the best point.

    `fits` says whether a point beyond the grid is within the limits of its settings.

    All points run on the first seed. After each seed, points that are more than the criterion's margin behind the best
    on the same seeds leave the race. When the rest have all seeds and neighbours of the best were not tried, as at an
    edge, these race against the rest. A point that has all seeds cannot leave any more: one that a neighbour beat on
    the first seed may be better over all of them.
    """
    points = grid_points(grid)
    entering, finalists = points, list[Point]()
    for widening in range(widenings + 1):
        racing = [*finalists, *entering]
        for done, seed in enumerate(seeds, start=1):
            if missing := [Trial(p, seed) for p in racing if seed not in scores.get(p, {})]:
                return SearchState(points, missing, None, [])
            costs = {p: statistics.fmean(scores[p][s] for s in seeds[:done]) for p in racing}
            limit = criterion.limit(costs.values(), criterion.margin)
            racing = [p for p in racing if p in finalists or costs[p] <= limit]
        finalists = racing
        chosen = choose(scores, finalists, seeds, criterion)
        beyond = {point: name for point, name in find_beyond(points, chosen).items() if fits(point)}
        if not beyond or widening == widenings:
            return SearchState(points, [], chosen, list(dict.fromkeys(beyond.values())))
        points, entering = [*points, *beyond], list(beyond)
    raise AssertionError("the last widening returns")


def choose(scores: Scores, racing: Sequence[Point], seeds: Sequence[int], criterion: Criterion) -> Point:
    """Return the best point: the least mean cost; among ties, the least spread over the seeds."""
    costs = {p: [scores[p][seed] for seed in seeds] for p in racing}
    means = {p: statistics.fmean(values) for p, values in costs.items()}
    limit = criterion.limit(means.values(), criterion.tie)
    tied = [p for p in racing if means[p] <= limit]

    def spread(p: Point) -> tuple[float, float]:
        return max(costs[p]) - min(costs[p]), means[p]

    return min(tied, key=spread)


def find_beyond(points: Sequence[Point], best: Point) -> dict[Point, str]:
    """Return the neighbours of the best point that were not tried, with the setting in which each differs from it.

    A neighbour has the next lower or next higher value of one setting. Beyond the lowest and the highest it is one
    step further: the ratio of the last two, because rates are tried on a logarithmic scale. A setting with one value,
    or with one that is not a positive number, has no next value.

    Of a grid, only points beyond its edges were not tried. Of a point that was added beyond an edge, others were not
    tried either: the best rate may be another one there.
    """
    beyond: dict[Point, str] = {}
    for index, (name, value) in enumerate(best):
        values: list[Any] = list({p[index][1] for p in points})
        if len(values) < 2 or not all(_is_positive(v) for v in values):  # noqa: PLR2004
            continue
        numbers = sorted(values)
        place, last = numbers.index(value), len(numbers) - 1
        below = numbers[place - 1] if place > 0 else _round_beyond(value, value * value / numbers[1])
        above = numbers[place + 1] if place < last else _round_beyond(value, value * value / numbers[-2])
        for next_value in (below, above):
            point = (*best[:index], (name, next_value), *best[index + 1 :])
            if point not in points:
                beyond[point] = name
    return beyond


def _round_beyond(value: float, further: float) -> float:
    """Return `further` with as few digits as leave it on its side of `value`: 1.6 as 2, but 1.21 as 1.2 beyond 1.1."""
    rounded = (float(f"{further:.{digits}g}") for digits in range(1, 17))
    return next((number for number in rounded if number != value and (number > value) == (further > value)), further)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


# The runs


@dataclass(frozen=True)
class Progress:
    """A run of a search or of its held-out seeds that is over."""

    phase: str  # "search" or "held-out"
    label: str
    outcome: Outcome


def run_tuning(
    plan: TuningPlan, out: Path, *, processes: int = 0, data_dir: str | Path | None = None
) -> Generator[Progress]:
    """Search the best point of every arm, then run it on the held-out seeds. What is there is not run again."""
    with RunPool(processes, data_dir) as pool:
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
                cost = plan.criterion.cost(plan.experiment(arm, point, seed), summary)
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
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{option}: {str(file)!r} is damaged ({error})") from error
