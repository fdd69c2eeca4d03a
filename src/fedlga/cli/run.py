"""fedlga run: train a joint model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedlga.cli.completion import complete_names
from fedlga.cli.interrupts import Interrupts, quote, report_stop
from fedlga.cli.options import collect_changes, experiment_options, folder_options, start_from
from fedlga.core.settings import BadInput


@click.command()
@experiment_options
@click.option("--method", metavar="M", help="See fedlga list methods.", shell_complete=complete_names("method"))
@click.option(
    "--stragglers", metavar="POLICY", help="wait, drop, keep or complete.", shell_complete=complete_names("policy")
)
@click.option("--seed", type=int, metavar="S", help="Seed of the random number generators.")
@folder_options(out="The run folder. Default: a new one in runs/.", resume="Continue a run that was stopped.")
@click.option(
    "--superlink", metavar="NAME", help="Backend flower: use the nodes of this SuperLink, not simulated ones."
)
@click.option(
    "--app",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Run this Flower app on the SuperLink and show its log; --set changes its configuration.",
)
def run(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    out: Path | None,
    resume: Path | None,
    superlink: str | None,
    app: Path | None,
    track: tuple[str, ...],
    **flags: Any,
) -> int:
    """Train a joint model: of your own task (FILE.py), of EXPERIMENT.toml, or of a preset.

    FILE.py has functions model() and data(): see docs/own-data.md. DIR then holds experiment.toml, rounds.jsonl,
    summary.json, model.safetensors and a checkpoint.
    """
    from fedlga.cli.terminal import Display, describe_experiment, describe_task, make_run_table
    from fedlga.core.process import keep_freed_memory
    from fedlga.experiments.folder import check_free, choose_folder
    from fedlga.experiments.records import count_rounds, read_run
    from fedlga.experiments.run import load_for_resume, run_and_record
    from fedlga.experiments.simulation import fit_experiment, load_data
    from fedlga.experiments.superlink import submit
    from fedlga.experiments.tracking import Tracking, make_trackers

    keep_freed_memory()
    if app is not None:
        return _run_app(app, superlink, collect_changes({}, sets), experiment or preset or out or resume)
    trackers = make_trackers(track)
    if trackers and superlink is not None:
        raise BadInput("--track: got it with --superlink; the run goes on there, and not in this process")
    changes = collect_changes(flags, sets)
    if superlink is not None:
        changes.setdefault("backend", "flower")
    if resume is not None:
        if experiment or preset or out:
            raise BadInput("--resume: got it with another experiment or --out; the folder holds the experiment")
        chosen, folder = load_for_resume(resume, changes), resume
    else:
        chosen = start_from(experiment, preset).changed(changes)
        folder = choose_folder(out, "runs", f"{chosen.method}-{chosen.subject}-seed{chosen.seed}")
    if resume is None:
        check_free(folder)
    done = count_rounds(folder) if resume is not None else 0
    if superlink is not None and chosen.backend != "flower":
        raise BadInput(f"--superlink: got it with backend {chosen.backend!r}; it goes with backend 'flower'")
    try:
        with Display() as display, Interrupts(display.say) as interrupts:
            data = None
            if chosen.task is not None and superlink is None:  # what its data decides is worth saying
                data = load_data(chosen, data_dir, display.show_fetch)
                chosen, _ = fit_experiment(chosen, data)
            display.say(describe_experiment(chosen))
            if data is not None:
                display.say(describe_task(chosen))
            display.begin(chosen.rounds, done=done)
            records = (
                run_and_record(
                    chosen,
                    folder,
                    resume=resume is not None,
                    data_dir=data_dir,
                    data=data,
                    progress=display.show_fetch,
                    tracking=Tracking(trackers, display.say) if trackers else None,
                )
                if superlink is None
                else submit(chosen, folder, superlink, resume=resume is not None, data_dir=data_dir)
            )
            stopped = False
            for record in records:
                display.show_round(record)
                if record.note:
                    display.say(f"round {record.round}: {record.note}")
                if stopped := interrupts.between_rounds():
                    break
            records.close()
    except KeyboardInterrupt as error:
        return report_stop(folder, "run", error, superlink)
    if superlink is not None and (stopped or not (folder / "summary.json").exists()):
        display.say(f"run folder, on the SuperLink's machine: {folder.resolve()}")
        if stopped:
            display.say(f"to go on, there: fedlga run --resume {quote(folder)} --superlink {superlink}")
        return interrupts.code if stopped else 0
    ended = read_run(folder)
    summary = ended.summary
    display.console.print(make_run_table(summary))
    if resume is not None and summary["finished"] and len(ended.records) == done:
        display.say("the run was over before: nothing was left to do")
    display.say(f"run folder: {folder}")
    if not summary["finished"]:
        where = f" --superlink {superlink}" if superlink else ""
        display.say(f"to go on: fedlga run --resume {quote(folder)}{where}")
    if stopped and not summary["finished"]:
        return interrupts.code
    return 0 if summary["finished"] and not summary["diverged"] else 1


def _run_app(app: Path, superlink: str | None, settings: dict[str, Any], other: object) -> int:
    """Run a Flower app; the exit code says how it ended."""
    from fedlga.experiments.superlink import run_app

    if superlink is None or other is not None:
        raise BadInput("--app: it takes --superlink, and no experiment, --preset, --out or --resume")
    return 0 if run_app(app, superlink, settings, click.echo) else 1
