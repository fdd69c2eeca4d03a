"""Comparisons and searches from Python: what `fedlga compare` and `fedlga tune` do, with what they found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedlga.core.registry import names_of
from fedlga.core.settings import BadInput
from fedlga.experiments.arms import Arm, pair_arms, parse_arm
from fedlga.experiments.compare import Plan, find_metric, make_table, read_summaries, run_plan, start, write_tables
from fedlga.experiments.config import Experiment
from fedlga.experiments.criteria import NO_TARGET, check_by, find_criterion, refuse_slow
from fedlga.experiments.folder import check_free, choose_folder
from fedlga.experiments.paired import PairedRow, compare_arms, write_paired
from fedlga.experiments.records import Run, read_run
from fedlga.experiments.run import warn
from fedlga.experiments.search import MOST_WIDENINGS
from fedlga.experiments.tables import format_latex, format_markdown, make_cells
from fedlga.experiments.tracking import Track, Tracking, make_trackers
from fedlga.experiments.tune import HELD_OUT, TuningPlan, held_out_plan, run_tuning
from fedlga.experiments.tune import start as start_tuning

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

    from fedlga.learning.reading import TaskData
    from fedlga.learning.task import Task

SEEDS = range(5)
TUNING_SEEDS = range(100, 103)


@dataclass(frozen=True)
class Comparison:
    """What a comparison found. Its folder has a run folder for each run, and the tables."""

    folder: Path
    plan: Plan

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each arm over the seeds: mean, standard deviation, half of the 95 % interval (`_half`)."""
        return make_table(self.plan, self.folder)

    def frame(self) -> pd.DataFrame:
        """Return the table as a pandas DataFrame."""
        try:
            import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            raise BadInput("frame: pandas is not installed; pip install 'fedlga[pandas]'") from error
        return pd.DataFrame(self.table)

    def runs(self) -> list[Run]:
        """Return all runs, seed by seed."""
        return [read_run(folder) for _, _, folder in self.plan.runs(self.folder)]

    def markdown(self) -> str:
        """Return the table in Markdown."""
        return format_markdown(self._cells())

    def latex(self) -> str:
        """Return the table in LaTeX."""
        return format_latex(self._cells())

    def _cells(self) -> list[list[str]]:
        metric = find_metric(read_summaries(self.plan, self.folder), self.plan.base)
        return make_cells(self.table, self.plan.experiments()[0], metric)


@dataclass(frozen=True)
class Tuning:
    """What a search found: the chosen settings, judged on seeds that chose nothing."""

    folder: Path
    plan: TuningPlan

    @property
    def arms(self) -> list[Arm]:
        """The arms with their chosen settings."""
        return list(held_out_plan(self.plan, self.folder).arms)

    @property
    def table(self) -> Sequence[PairedRow]:
        """The arms on the held-out seeds, each compared with the first one, paired by seed."""
        return compare_arms(held_out_plan(self.plan, self.folder), self.folder / HELD_OUT)

    def comparison(self) -> Comparison:
        """Return the comparison of the chosen arms on the held-out seeds."""
        return Comparison(self.folder / HELD_OUT, held_out_plan(self.plan, self.folder))


def compare(
    experiment: Experiment,
    *,
    methods: str | Sequence[str] = (),
    stragglers: str | Sequence[str] = (),
    arms: str | Sequence[str | Arm] = (),
    seeds: Iterable[int] = SEEDS,
    out: str | Path | None = None,
    resume: bool = False,
    task: Task | None = None,
    data_dir: str | Path | None = None,
    track: Track | None = None,
) -> Comparison:
    """Compare methods and policies over the same seeds, into a folder.

    Args:
        experiment: what all runs share.
        methods: names of methods; by default all six, or fedavg if `stragglers` are named.
        stragglers: names of policies, each with every method that takes it; by default each method's own.
        arms: more rows, with settings of their own: 'fedavg keep lr=0.1'.
        seeds: every arm runs on each of them.
        out: the folder; by default a new one in comparisons/.
        resume: continue the comparison that is in `out`.
        task: what is learned, if it is not in the experiment.
        data_dir: where data is kept.
        track: trackers that follow every run: 'tensorboard'.

    Returns:
        The comparison: `.frame()`, `.markdown()`, `.latex()`, `.runs()`, `.folder`.
    """
    from fedlga.experiments.simulation import bind_task, load_data

    if resume and out is None:
        raise BadInput("resume: got it without out; it takes the folder of a comparison")
    trackers = make_trackers(track)
    base = bind_task(experiment, task)
    methods, stragglers = _list_names("methods", methods), _list_names("stragglers", stragglers)
    default = ["fedavg"] if stragglers else [] if arms else names_of("method")
    folder = choose_folder(out, "comparisons", "comparison")
    if resume:
        plan = Plan.load(folder)
    else:
        more = _list_arms(arms)
        plan = Plan(base, {}, methods or default, stragglers, _list_seeds("seeds", seeds), more)
        plan.experiments()  # raises BadInput, if an arm does not fit
        check_free(folder)
    data = load_data(plan.base, data_dir, task=task)
    if not resume:
        start(plan, folder, data)
    for _ in run_plan(plan, folder, data, follow=lambda: Tracking(trackers, warn) if trackers else None):
        pass
    write_tables(plan, folder)
    return Comparison(folder, plan)


def tune(
    experiment: Experiment,
    *,
    grid: Mapping[str, Sequence[Any]],
    methods: str | Sequence[str] = (),
    stragglers: str | Sequence[str] = (),
    arms: str | Sequence[str | Arm] = (),
    by: str | None = None,
    seeds: Iterable[int] = TUNING_SEEDS,
    held_out: Iterable[int] = SEEDS,
    widen: int = MOST_WIDENINGS,
    workers: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    data_dir: str | Path | None = None,
    track: Track | None = None,
) -> Tuning:
    """Find the best setting of each arm by the same search, and judge it on seeds that chose nothing.

    Args:
        experiment: what all runs share; a task must be a file.
        grid: values to try, by setting: {"lr": [0.01, 0.03, 0.1]}.
        methods: names of methods; by default fedavg if `stragglers` are named.
        stragglers: names of policies, each with every method that takes it.
        arms: more arms, with settings of their own: 'fedprox keep mu=0.1'. The first is what others are compared with.
        by: what makes a setting best: metric (the target metric, the default), slow or time.
        seeds: for the choice.
        held_out: for what is reported.
        widen: how often a grid grows if the best is at its edge.
        workers: runs at a time; 0: one a core.
        out: the folder; by default a new one in tunings/.
        resume: continue the search that is in `out`.
        data_dir: where data is kept.
        track: trackers that follow every run: 'tensorboard'. They are sent to other processes.

    Returns:
        The search: `.arms` (with chosen settings), `.table`, `.comparison()`, `.folder`.
    """
    from fedlga.experiments.simulation import bind_task, load_data

    if resume and out is None:
        raise BadInput("resume: got it without out; it takes the folder of a search")
    bind_task(experiment, None)  # raises BadInput, if it is none
    for what, number in (("widen", widen), ("workers", workers)):
        _check_whole(what, number)
    make_trackers(track)  # raises BadInput, if one cannot be used here
    folder = choose_folder(out, "tunings", "tuning")
    if resume:
        plan = TuningPlan.load(folder)
    else:
        policies = _list_names("stragglers", stragglers)
        names = _list_names("methods", methods) or (["fedavg"] if policies else [])
        more = _list_arms(arms)
        chosen = [*pair_arms(names, policies, experiment.stragglers), *more]
        if not chosen:
            raise BadInput("arms: got none; it takes at least one, or methods, or stragglers")
        criterion = find_criterion(by, experiment.target_metric if experiment.task is None else None)
        tuned, judged = _list_seeds("seeds", seeds), _list_seeds("held_out", held_out)
        plan = TuningPlan(experiment, chosen, _read_grid(grid), criterion, tuned, judged, widen)
        check_free(folder)
        check_criterion(plan, by or criterion.name, load_data(experiment, data_dir))
        start_tuning(plan, folder)
    for step in run_tuning(plan, folder, processes=workers, data_dir=data_dir, track=track):
        for note in step.outcome.notes:
            warn(note)
    write_paired(held_out_plan(plan, folder), folder / HELD_OUT)
    return Tuning(folder, plan)


def _list_names(what: str, names: str | Sequence[str]) -> list[str]:
    """Return names in a list; one text may hold several, as on the command line."""
    if isinstance(names, str):
        return names.replace(",", " ").split()
    return _list_all(what, names, str, "a name or a list of names")


def _list_arms(arms: str | Sequence[str | Arm]) -> list[Arm]:
    listed = _list_all("arms", [arms] if isinstance(arms, str) else arms, (str, Arm), "texts: 'fedavg keep lr=0.1'")
    return [parse_arm(arm) if isinstance(arm, str) else arm for arm in listed]


def _list_all(what: str, given: Any, kinds: type | tuple[type, ...], takes: str) -> list[Any]:
    """Return a list of these types; BadInput if it is none."""
    listed = list(cast("Iterable[Any]", given)) if isinstance(given, Iterable) else [None]
    if not all(isinstance(value, kinds) for value in listed):
        raise BadInput(f"{what}: got {given!r}; it takes {takes}")
    return listed


def _check_whole(what: str, number: int) -> None:
    given: Any = number
    if not isinstance(given, Integral) or given < 0:
        raise BadInput(f"{what}: got {given!r}; it takes a whole number of at least 0")


def _list_seeds(what: str, seeds: Iterable[int]) -> list[int]:
    given: Any = seeds
    if not isinstance(given, Iterable) or isinstance(given, str):
        raise BadInput(f"{what}: got {given!r}; it takes a list of whole numbers, such as [0, 1, 2] or range(5)")
    listed: list[Any] = list(seeds)
    whole = [int(seed) for seed in listed if isinstance(seed, Integral)]  # numpy's integers too
    if not whole or min(whole) < 0 or len(set(whole)) < len(listed):
        raise BadInput(f"{what}: got {listed!r}; it takes whole numbers of at least 0, one or more, each once")
    return whole


def _read_grid(grid: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    given: Any = grid
    takes = "it takes a dict of lists, such as {'lr': [0.01, 0.03, 0.1]}"
    if not isinstance(given, Mapping):
        raise BadInput(f"grid: got {given!r}; {takes}")
    for name, values in grid.items():
        several: Any = values
        if isinstance(several, str) or not isinstance(several, Iterable):
            raise BadInput(f"grid: got {name} = {several!r}; {takes}")
    return {name: list(values) for name, values in grid.items()}


def check_criterion(plan: TuningPlan, by: str, data: TaskData) -> None:
    """Raise BadInput if the runs of a plan cannot be judged as --by says."""
    from fedlga.experiments.simulation import bind_task, fit_experiment, make_fleet, split_data
    from fedlga.learning.metrics import LOSS

    first, problem = fit_experiment(bind_task(plan.arms[0].experiment(plan.base, plan.seeds[0]), None), data)
    metric = first.target_metric
    check_by(by, metric, [*(m.name for m in problem.metrics), LOSS])
    split = split_data(first, data, problem)
    slow = make_fleet(first, split, problem.model).always_slow()
    if plan.criterion.name == "time" and first.target is None:
        raise BadInput(NO_TARGET)
    if plan.criterion.name == "slow":
        if not slow:
            raise refuse_slow(metric)
        if split.ranges is None and split.held is None:
            raise refuse_slow(metric, "the test set belongs to no device and has no classes")
