"""What commands share: the options that describe an experiment, and new folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from fedlga.experiments.config import Experiment

Command = Callable[..., Any]


def experiment_options(command: Command) -> Command:
    """Add the options that say which experiment is meant."""
    options = [
        click.argument("experiment", required=False, type=click.Path(dir_okay=False, path_type=Path)),
        click.option("--preset", metavar="NAME", help="Start from a preset: see fedlga presets. Default: paper."),
        click.option("--dataset", metavar="D", help="See fedlga list datasets."),
        click.option("--rounds", type=int, metavar="T", help="Rounds to train."),
        click.option("--target", type=float, metavar="A", help="Accuracy, or other target metric, to reach."),
        click.option("--backend", metavar="B", help="serial, pool or flower."),
        click.option("--device", metavar="D", help="cpu, cuda, cuda:N, mps or auto: where tensors are computed."),
        click.option("--workers", type=int, metavar="W", help="Processes of the pool; 0: one a core."),
        click.option(
            "--audit", is_flag=True, default=None, help="Measure how close completed updates come to true ones."
        ),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any field: see fedlga fields."),
        click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def start_from(file: Path | None, preset_name: str | None) -> Experiment:
    """Return the experiment of a TOML file, of a task's Python file, or of a preset."""
    from fedlga.experiments.config import Experiment
    from fedlga.experiments.presets import preset

    if file is not None and preset_name is not None:
        raise BadInput(f"--preset: got {preset_name!r} with {str(file)!r}; it takes one of the two")
    if file is not None and file.suffix == ".py":
        from fedlga.learning.task import load_task

        task = load_task(str(file))
        try:
            return Experiment(task=task.source).changed(task.experiment)
        except BadInput as error:
            raise BadInput(f"{file.name}: experiment: {error}") from error
    return Experiment.load(file) if file is not None else preset(preset_name or "paper")


def collect_changes(flags: dict[str, Any], sets: tuple[str, ...]) -> dict[str, Any]:
    """Return what the options change: the named ones, then --set in its order."""
    from fedlga.experiments.config import parse_setting

    named = {name: value for name, value in flags.items() if value is not None}
    return named | dict(parse_setting(text) for text in sets)


def check_writable(file: Path) -> None:
    """Raise BadInput if a file cannot be written: better now than hours later."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(file.parent)!r} ({error.strerror})") from error
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadInput(f"--out: cannot write to {str(file)!r} (Permission denied)")
