"""fedlga tune: each method and policy at its best setting, judged on seeds that chose nothing."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlga.cli.interrupts import Interrupts, find_code, quote
from fedlga.cli.options import (
    arm_options,
    collect_changes,
    count,
    experiment_options,
    folder_options,
    split_list,
    start_from,
)
from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from fedlga.experiments.tune import Progress, TuningPlan

COLUMNS = 80  # of a terminal
STOPPING = "stopping when the next run is over; Ctrl-C again stops after the rounds that are going on"


@click.command()
@experiment_options
@arm_options("tune", "fedavg with --stragglers", " The first arm is the one others are compared with.")
@click.option("--grid", "grids", multiple=True, metavar="KEY=V,V,...", help="Values to try; can be repeated.")
@click.option(
    "--by", metavar="C", help="What makes a setting best: metric (the target metric, or its name), slow or time."
)
@click.option("--seeds", "seed_text", metavar="S", help="Seeds for the choice. Default: 100-102.")
@click.option("--held-out", "held_out_text", metavar="S", help="Seeds for what is reported. Default: 0-4.")
@click.option("--widen", type=int, metavar="N", help="How often a grid grows if the best is at its edge. Default: 3.")
@folder_options(out="Default: a new folder in tunings/.", resume="Continue a search.")
def tune(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    methods: str | None,
    policies: str | None,
    arm_texts: tuple[str, ...],
    grids: tuple[str, ...],
    by: str | None,
    seed_text: str | None,
    held_out_text: str | None,
    widen: int | None,
    out: Path | None,
    resume: Path | None,
    track: tuple[str, ...],
    **flags: Any,
) -> int:
    """Find the best setting of each method and policy by the same search, and compare them on other seeds.

    Every point of the grid runs on the first of --seeds, those that are not far behind also on the others. If the
    best is at the edge of the grid, the grid grows. Runs go in parallel, one a core. DIR then holds tuning.csv (every
    point), choice.toml (for compare --tuned), and held-out/ with the tables of the chosen settings.
    """
    from fedlga.cli.terminal import Display, make_tuning_table
    from fedlga.core.settings import check_settings
    from fedlga.experiments.arms import list_left_out, pair_arms, parse_arm
    from fedlga.experiments.compare import find_metric, read_summaries
    from fedlga.experiments.config import BETTER, Experiment
    from fedlga.experiments.criteria import check_by, find_criterion
    from fedlga.experiments.folder import check_free, choose_folder
    from fedlga.experiments.paired import compare_arms, write_paired
    from fedlga.experiments.parsing import parse_seeds
    from fedlga.experiments.search import MOST_WIDENINGS
    from fedlga.experiments.simulation import load_data
    from fedlga.experiments.studies import check_criterion
    from fedlga.experiments.tracking import make_trackers
    from fedlga.experiments.tune import FIXED, HELD_OUT, PLAN, TuningPlan, held_out_plan, run_tuning, start

    workers = check_settings("", Experiment, {"workers": flags.pop("workers") or 0})["workers"]
    make_trackers(track)  # raises BadInput, if one cannot be used here
    changes = collect_changes(flags, sets)
    if resume is not None:
        given = (experiment, preset, out, methods, policies, arm_texts, grids, by, seed_text, held_out_text, changes)
        if any(given) or widen is not None:
            raise BadInput("--resume: got it with other options; the folder holds all of the search")
        plan, folder = TuningPlan.load(resume), resume
    else:
        if fixed := set(FIXED) & set(changes):
            raise BadInput(f"--set: {sorted(fixed)[0]} is what tune varies itself; see fedlga tune --help")
        base = start_from(experiment, preset).changed(changes)
        metric = base.target_metric if base.task is None else None  # of a task only its data tells
        if by is not None and metric is not None:
            check_by(by, metric, BETTER)
        names = split_list(methods) or (["fedavg"] if policies else [])
        chosen_policies = split_list(policies)
        arms = [*pair_arms(names, chosen_policies, base.stragglers), *map(parse_arm, arm_texts)]
        for line in list_left_out(names, chosen_policies):
            click.echo(line)
        if not arms:
            raise BadInput("--arm: got none; it takes at least one, or --methods, or --stragglers")
        plan = TuningPlan(
            base=base,
            arms=arms,
            grid=parse_grids(grids),
            criterion=find_criterion(by, metric),
            seeds=list(parse_seeds(seed_text or "100-102")),
            held_out=list(parse_seeds(held_out_text or "0-4", "--held-out")),
            widenings=MOST_WIDENINGS if widen is None else widen,
        )
        folder = choose_folder(out, "tunings", "tuning")
        check_free(folder)
    display = Display()
    try:
        with display, Interrupts(display.say, STOPPING) as interrupts:
            data = load_data(plan.base, data_dir, display.show_fetch)  # fetched once, before many processes need it
            check_criterion(plan, by or plan.criterion.name, data)  # better now than when the first runs are over
            del data
            if resume is None:
                start(plan, folder)
            display.say(describe(plan, folder))
            steps, stopped = run_tuning(plan, folder, processes=workers, data_dir=data_dir, track=track), False
            for step in steps:
                for note in step.outcome.notes:
                    display.say(note)
                if step.outcome.summary:
                    display.say(describe_run(step))
                if stopped := interrupts.between_rounds():
                    break
            steps.close()
            code = interrupts.code
    except KeyboardInterrupt as error:
        stopped, code = True, find_code(error)
    if stopped:
        written = (folder / PLAN).exists()
        click.echo(f"to go on: fedlga tune --resume {quote(folder)}" if written else "stopped; nothing was written")
        return code
    chosen = held_out_plan(plan, folder)
    write_paired(chosen, folder / HELD_OUT)
    metric = find_metric(read_summaries(chosen, folder / HELD_OUT), plan.base)
    display.console.print(make_tuning_table(compare_arms(chosen, folder / HELD_OUT), plan.base, metric))
    held_out, seeds = count(len(plan.held_out), "held-out seed"), count(len(plan.seeds), "other seed")
    notes = [
        f"mean ± half of the 95 % interval (from three seeds on) over {held_out}; "
        f"the settings were chosen on {seeds} by {plan.criterion.describe(metric)}"
    ]
    if len(chosen.arms) > 1:
        notes.append("ahead, behind: the first arm against this one, paired, exact test with Holm's correction at 5 %")
    for line in (line for note in notes for line in textwrap.wrap(note, COLUMNS)):
        display.say(line)
    display.say(f"written: {folder}: tuning.csv, choice.toml, held-out/paired.csv, held-out/comparison.csv")
    return 0


def parse_grids(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Return the grid of all --grid options."""
    grid: dict[str, list[Any]] = {}
    for name, values in map(parse_grid, texts):
        if name in grid:
            raise BadInput(f"--grid: got {name} twice; it takes all values of a setting at once, such as lr=0.01,0.03")
        grid[name] = values
    return grid


def parse_grid(text: str) -> tuple[str, list[Any]]:
    """Return the setting and the values of 'lr=0.01,0.03'."""
    from fedlga.experiments.parsing import parse_setting

    name, equals, values = text.partition("=")
    if not name.strip() or not equals or not values.strip():
        raise BadInput(f"--grid: got {text!r}; it takes KEY=V,V,..., such as lr=0.01,0.03,0.1")
    return name.strip(), [parse_setting(f"{name}={value}")[1] for value in split_list(values)]


def describe(plan: TuningPlan, folder: Path) -> str:
    """Return what is about to run, in a line."""
    from fedlga.experiments.search import grid_points

    points = sum(len(grid_points(plan.grid_of(arm))) for arm in plan.arms)
    return (
        f"{count(len(plan.arms), 'arm')}, {count(points, 'point')}, {count(len(plan.seeds), 'seed')} for the choice, "
        f"{len(plan.held_out)} held out, into {folder}"
    )


def describe_run(step: Progress) -> str:
    """Return a run that is over, in a line."""
    from fedlga.cli.terminal import describe_outcome

    return (
        f"{step.phase} {step.label} seed {step.outcome.job.experiment.seed}: {describe_outcome(step.outcome.summary)}"
    )
