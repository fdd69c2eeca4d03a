"""fedlga compare: methods and policies over the same seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedlga.cli.interrupts import Interrupts, quote, report_stop
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

TABLES = {"markdown": "comparison.md", "latex": "comparison.tex", "csv": "comparison.csv"}


@click.command()
@experiment_options
@arm_options("compare", "all six, or fedavg with --stragglers")
@click.option(
    "--tuned",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The arms, and the settings that fedlga tune chose for them, from its folder.",
)
@click.option("--seeds", "seed_text", metavar="S", help="Seeds, such as 0-4 or 0,3,7. Default: 0-4.")
@folder_options(out="Default: a new folder in comparisons/.", resume="Continue a comparison.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", *TABLES]),
    default="table",
    help="Of the table that is printed; then all else goes to stderr. DIR has all of them.",
)
def compare(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    methods: str | None,
    policies: str | None,
    arm_texts: tuple[str, ...],
    tuned: Path | None,
    seed_text: str | None,
    out: Path | None,
    resume: Path | None,
    form: str,
    track: tuple[str, ...],
    **flags: Any,
) -> int:
    """Compare methods and policies over the same seeds: mean and spread in one table.

    DIR then holds the table (comparison.csv, .md, .tex, .png), every run in a line (runs.csv), both as comparison.json,
    what the figure shows (curves.csv), and a run folder for each run.
    """
    from rich.console import Console

    from fedlga.backends.pool.workers import Workers
    from fedlga.cli.terminal import Display, describe_outcome, make_comparison_table, make_end_table
    from fedlga.core.process import keep_freed_memory
    from fedlga.core.registry import names_of
    from fedlga.experiments.arms import list_left_out, parse_arm
    from fedlga.experiments.compare import (
        Plan,
        find_metric,
        make_table,
        read_rounds,
        read_summaries,
        run_plan,
        start,
        write_tables,
    )
    from fedlga.experiments.folder import check_free, choose_folder
    from fedlga.experiments.parsing import parse_seeds
    from fedlga.experiments.records import read_summary
    from fedlga.experiments.simulation import load_data, worker_count
    from fedlga.experiments.tables import NOTE, has_targets
    from fedlga.experiments.tracking import Tracking, make_trackers
    from fedlga.experiments.tune import plan_tuned
    from fedlga.report.learning_curves import draw_metric_over_time
    from fedlga.report.seed_curves import CURVES, write_curves

    keep_freed_memory()
    trackers = make_trackers(track)
    if resume is not None:
        given = (experiment, preset, out, methods, policies, arm_texts, tuned, seed_text, collect_changes(flags, sets))
        if any(given):
            raise BadInput("--resume: got it with other options; the folder holds all of the comparison")
        plan, folder = Plan.load(resume), resume
    else:
        changes = collect_changes(flags, sets)
        if fixed := {"method", "stragglers", "seed"} & set(changes):
            raise BadInput(f"--set: {sorted(fixed)[0]} is what compare varies; use --methods, --stragglers, --seeds")
        seeds = list(parse_seeds(seed_text or "0-4"))
        if tuned is not None:
            if experiment or preset or methods or policies or arm_texts:
                raise BadInput("--tuned: got it with another experiment or other arms; the folder holds them")
            plan = plan_tuned(tuned, changes, seeds)
        else:
            default = ["fedavg"] if policies else [] if arm_texts else names_of("method")
            plan = Plan(
                base=start_from(experiment, preset),
                changes=changes,
                methods=split_list(methods) or default,
                policies=split_list(policies),
                seeds=seeds,
                more_arms=[parse_arm(text) for text in arm_texts],
            )
        folder = choose_folder(out, "comparisons", "comparison")
    runs = plan.runs(folder)
    experiments = [e for _, e, _ in runs]
    if resume is None:
        check_free(folder)
    workers = Workers(worker_count(experiments[0])) if experiments[0].backend == "pool" else None
    ended = 0
    try:
        console = None if form == "table" else Console(stderr=True, highlight=False)
        with Display(console) as display, Interrupts(display.say) as interrupts:
            loaded = load_data(experiments[0], data_dir, display.show_fetch)
            if resume is None:
                start(plan, folder, loaded)
            for line in list_left_out(plan.methods, plan.policies):
                display.say(line)
            display.say(f"{count(len(experiments), 'run')} into {folder}")
            display.begin(sum(e.rounds for e in experiments))
            follow = display.say
            steps = run_plan(plan, folder, loaded, workers, lambda: Tracking(trackers, follow) if trackers else None)
            for step in steps:
                e, before = step.experiment, sum(x.rounds for x in experiments[: step.number - 1])
                if step.record is not None:
                    display.show_round(step.record, before + step.record.round)
                else:
                    ended = step.number
                    arm, _, run_folder = runs[ended - 1]
                    name = f"{e.method} ({' '.join(filter(None, (e.policy, arm.settings_text)))})"
                    outcome = describe_outcome(read_summary(run_folder))
                    display.say(f"{ended}/{len(experiments)} {name} seed {e.seed}: {outcome}")
                if interrupts.between_rounds():
                    break
            steps.close()
    except KeyboardInterrupt as error:
        return report_stop(folder, "compare", error)
    finally:
        if workers is not None:
            workers.close()
    complete = ended == len(experiments)
    write_tables(plan, folder)
    rows = make_table(plan, folder)
    metric = find_metric(read_summaries(plan, folder), plan.base)
    if form == "table":
        display.console.print(make_comparison_table(rows, experiments[0], metric))
        if (end := make_end_table(rows, metric)) is not None:
            display.console.print(end)
            display.say("slow, worst: on data like the slow devices', and the worst device's")
            if any(row["approximation_error"] is not None for row in rows):
                display.say("error: of completed updates")
        display.say(NOTE)
        if has_targets(rows):
            display.say("rounds, seconds, simulated s: of the runs that reached the target")
            display.say("v first: mean difference in rounds to the first row, seed by seed")
    else:
        click.echo((folder / TABLES[form]).read_text(encoding="utf-8"), nl=False)
    written = [".csv", ".md", ".tex", ".json"]
    curves = write_curves(folder / CURVES, read_rounds(plan, folder), [metric, f"{metric}_slow"])
    if curves:
        drawings = [folder / "comparison.png", folder / "comparison.svg"]
        draw_metric_over_time(curves, metric, experiments[0].target, drawings, experiments[0].subject)
        written += [file.suffix for file in drawings]
    display.say(f"written: {folder}/runs.csv, {CURVES}, comparison{', '.join(written)}")
    if not complete:
        display.say(f"to go on: fedlga compare --resume {quote(folder)}")
        return interrupts.code
    ends = [read_summary(run_folder) for _, _, run_folder in runs]
    if all(summary["diverged"] for summary in ends):
        display.say("every run diverged: the rate (lr, eta_g) is too high")
        return 1
    return 0
