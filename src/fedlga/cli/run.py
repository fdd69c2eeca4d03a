"""fedlga run: train a joint model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedlga.cli.interrupts import Interrupts, report_stop
from fedlga.cli.options import collect_changes, experiment_options, start_from
from fedlga.core.settings import BadInput


@click.command()
@experiment_options
@click.option("--method", metavar="M", help="See fedlga list methods.")
@click.option("--stragglers", metavar="POLICY", help="wait, drop, keep or complete.")
@click.option("--seed", type=int, metavar="S", help="Seed of the random number generators.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="The run folder. Default: a new one in runs/."
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Continue a run that was stopped.")
@click.option(
    "--superlink", metavar="NAME", help="Backend flower: use the nodes of this SuperLink, not simulated ones."
)
def run(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    out: Path | None,
    resume: Path | None,
    superlink: str | None,
    **flags: Any,
) -> int:
    """Train a joint model: of your own task (FILE.py), of EXPERIMENT.toml, or of a preset.

    FILE.py has functions model() and data(): see docs/own-data.md. DIR then holds experiment.toml, rounds.jsonl,
    summary.json, model.safetensors and a checkpoint.
    """
    from fedlga.cli.terminal import Display, describe_experiment, describe_task, make_run_table
    from fedlga.core.process import keep_freed_memory
    from fedlga.experiments.records import read_records, read_run
    from fedlga.experiments.run import check_free, load_for_resume, new_folder, run_and_record
    from fedlga.experiments.simulation import fit_experiment, load_data
    from fedlga.experiments.superlink import submit

    keep_freed_memory()
    changes = collect_changes(flags, sets)
    if superlink is not None:
        changes.setdefault("backend", "flower")
    if resume is not None:
        if experiment or preset or out:
            raise BadInput("--resume: got it with another experiment or --out; the folder holds the experiment")
        chosen, folder = load_for_resume(resume, changes), resume
    else:
        chosen = start_from(experiment, preset).changed(changes)
        folder = out or new_folder("runs", f"{chosen.method}-{chosen.subject}-seed{chosen.seed}")
    if resume is None:
        check_free(folder)
    done = len(read_records(folder)) if resume is not None else 0
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
    except KeyboardInterrupt:
        return report_stop(folder, "run", superlink)
    if superlink is not None and (stopped or not (folder / "summary.json").exists()):
        display.say(f"run folder, on the SuperLink's machine: {folder.resolve()}")
        if stopped:
            display.say(f"to go on, there: fedlga run --resume {folder} --superlink {superlink}")
        return 1 if stopped else 0
    summary = read_run(folder).summary
    display.console.print(make_run_table(summary))
    display.say(f"run folder: {folder}")
    if not summary["finished"]:
        display.say(f"to go on: fedlga run --resume {folder}" + (f" --superlink {superlink}" if superlink else ""))
    return 0 if summary["finished"] and not summary["diverged"] else 1
