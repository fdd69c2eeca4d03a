"""fedlga fleet: a fleet of your own, through Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedlga.core.settings import BadInput


@click.group()
def fleet() -> None:
    """Set up real devices: certificates, keys, scripts, an app; try all of it on this machine."""


@fleet.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--nodes", default=5, show_default=True, help="Devices, each with a key pair of its own.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Name or address of the SuperLink for its nodes.")
@click.option(
    "--port", default=9443, show_default=True, help="The SuperLink's port; a trial also uses the ports after it."
)
@click.option("--task", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.py", help="Your own task.")
def init(folder: Path, nodes: int, host: str, port: int, task: Path | None) -> None:
    """Write a deployment into DIR: see its README.md."""
    from fedlga.backends.flower.installed import check_installed

    check_installed()
    from fedlga.backends.flower.deployment import init as write_deployment

    settings: dict[str, Any] = {}
    if task is not None:
        from fedlga.learning.task import load_task

        settings = dict(load_task(str(task)).experiment)  # BadInput, if it is no task
    for path in write_deployment(folder, nodes=nodes, host=host, port=port, task=task, settings=settings):
        click.echo(f"written: {path}{'/' if path.is_dir() else ''}")
    click.echo(f"try it here: fedlga fleet up {folder} --nodes {nodes}")


@fleet.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@click.option("--nodes", default=5, show_default=True, help="Number of devices to start.")
@click.option(
    "--seconds-per-step", "paces", default="", metavar="S,S,...", help="Slow nodes: the seconds of a step, at least."
)
def up(folder: Path, nodes: int, paces: str) -> None:
    """Start the SuperLink and nodes on loopback, with TLS and node authentication."""
    from fedlga.backends.flower.installed import check_installed

    check_installed()
    from fedlga.backends.flower.trial import Trial

    try:
        seconds = [float(pace) for pace in paces.split(",")] if paces else []
    except ValueError as error:
        raise BadInput(f"--seconds-per-step: got {paces!r}; it takes numbers such as 0,0.1,0.5") from error
    if min(seconds, default=0.0) < 0 or len(seconds) > nodes:
        raise BadInput(f"--seconds-per-step: got {paces!r}; it takes one for each node, from 0")
    trial = Trial(folder.resolve())
    trial.up(nodes, seconds, click.echo)
    click.echo(f"train: FLWR_HOME={folder / 'flower'} flwr run {folder / 'app'} fleet --stream")
    click.echo(f"stop:  fedlga fleet down {folder}")


@fleet.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
def down(folder: Path) -> None:
    """Stop what `fleet up` started in DIR, and nothing else."""
    from fedlga.backends.flower.trial import Trial

    trial = Trial(folder.resolve())
    assert trial.settings  # raises if it is not a fleet
    stopped = trial.down()
    click.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")
