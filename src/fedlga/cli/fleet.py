"""fedlga fleet: a fleet of your own, through Flower."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from fedlga.core.settings import BadInput, Stopped

if TYPE_CHECKING:
    from fedlga.backends.flower.trial import Trial

folder_argument = click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
numbers_argument = click.argument("numbers", type=int, nargs=-1, required=True, metavar="DEVICE...")


@click.group()
def fleet() -> None:
    """Set up and run real devices: certificates, keys, scripts, an app; try all of it on this machine."""


def open_fleet(folder: Path) -> Trial:
    """Return the fleet in a folder; BadInput if Flower is not installed, or there is none."""
    from fedlga.backends.flower.installed import check_installed

    check_installed()
    from fedlga.backends.flower.trial import Trial

    trial = Trial(folder.resolve())
    assert trial.settings  # raises if it is not a fleet
    return trial


@contextmanager
def in_one_line(folder: Path) -> Generator[None]:
    """BadInput if a file of the fleet is missing, or the disk does not take one: whoever runs a fleet can mend that."""
    try:
        yield
    except OSError as error:
        what = f"{str(error.filename or folder)!r}: {error.strerror or error}"
        raise BadInput(f"{what}; the command stopped there") from error


@fleet.command()
@folder_argument
@click.option("--nodes", default=5, show_default=True, help="Devices, each with a key pair of its own.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Name or address by which nodes reach the proxy.")
@click.option("--listen", default="127.0.0.1", show_default=True, help="Address that the proxy listens on.")
@click.option("--port", default=9443, show_default=True, help="The proxy's port; the fleet's others come after it.")
@click.option("--task", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.py", help="Your own task.")
def init(folder: Path, nodes: int, host: str, listen: str, port: int, task: Path | None) -> None:
    """Write a deployment into DIR: see its README.md."""
    from fedlga.backends.flower.installed import check_installed

    check_installed()
    from fedlga.backends.flower.deployment import init as write_deployment

    settings: dict[str, Any] = {}
    if task is not None:
        from fedlga.learning.task import load_task

        settings = dict(load_task(str(task)).experiment)  # BadInput, if it is no task
    written = write_deployment(folder, nodes=nodes, host=host, listen=listen, port=port, task=task, settings=settings)
    for path in written:
        click.echo(f"written: {path}{'/' if path.is_dir() else ''}")
    click.echo(f"try it here: fedlga fleet up {quote(str(folder))} --nodes {nodes}")


@fleet.command()
@folder_argument
def write(folder: Path) -> None:
    """Write scripts, units and configurations again: after a change of fleet.toml, or with a new version of fedlga."""
    from fedlga.backends.flower.deployment import write_scripts

    trial = open_fleet(folder)
    with in_one_line(folder):
        write_scripts(trial.folder)
    click.echo(
        f"written from {folder / 'fleet.toml'}: scripts, units, proxy.conf; keys, certificates and app are as before"
    )


@fleet.command()
@folder_argument
@click.option("--nodes", default=5, show_default=True, help="Number of devices to start.")
@click.option(
    "--seconds-per-step", "paces", default="", metavar="S,S,...", help="Slow nodes: the seconds of a step, at least."
)
@click.option("--proxy", is_flag=True, help="With nginx between the SuperLink and the nodes.")
def up(folder: Path, nodes: int, paces: str, proxy: bool) -> None:
    """Start the SuperLink and nodes on loopback, with TLS and node authentication."""
    try:
        seconds = [float(pace) for pace in paces.split(",")] if paces else []
    except ValueError as error:
        raise BadInput(f"--seconds-per-step: got {paces!r}; it takes numbers such as 0,0.1,0.5") from error
    if min(seconds, default=0.0) < 0 or len(seconds) > nodes:
        raise BadInput(f"--seconds-per-step: got {paces!r}; it takes one for each node, from 0")
    trial = open_fleet(folder)
    with in_one_line(folder):
        trial.up(nodes, seconds, click.echo, proxy=proxy)
    home, app = (quote(str(folder / name)) for name in ("flower", "app"))
    click.echo(f"train: FLWR_HOME={home} flwr run {app} fleet --stream")
    click.echo(f"stop:  fedlga fleet down {quote(str(folder))}")


@fleet.command()
@folder_argument
def down(folder: Path) -> None:
    """Stop what `fleet up` started in DIR, and nothing else."""
    stopped = open_fleet(folder).down()
    click.echo(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


@fleet.command()
@folder_argument
@click.option("--count", default=1, show_default=True, help="Number of new devices.")
def add(folder: Path, count: int) -> None:
    """Add devices: keys, scripts, and their registration at the SuperLink."""
    from fedlga.backends.flower.deployment import add_nodes

    trial = open_fleet(folder)
    with in_one_line(folder):
        new = add_nodes(trial.folder, count)
    for number in new:
        click.echo(f"written: {folder / 'nodes' / str(number)}/: copy it to device {number}, and start node.sh there")
    sync_or_say(trial.folder, "the new keys are not registered")
    click.echo("they take part in the next run: a run has the devices that it was started with")


@fleet.command()
@folder_argument
@numbers_argument
def revoke(folder: Path, numbers: tuple[int, ...]) -> None:
    """Take devices out: the SuperLink refuses their keys from now on."""
    from fedlga.backends.flower.deployment import put_aside

    trial = open_fleet(folder)
    with in_one_line(folder):
        put_aside(trial.folder, numbers)
    sync_or_say(trial.folder, "the devices are still let in")
    click.echo(f"revoked: {', '.join(map(str, numbers))}; their keys are in {folder / 'revoked'}, for your records")


@fleet.command()
@folder_argument
@numbers_argument
def rekey(folder: Path, numbers: tuple[int, ...]) -> None:
    """Give devices new keys: the SuperLink refuses the old ones from now on."""
    from fedlga.backends.flower.deployment import replace_keys

    trial = open_fleet(folder)
    with in_one_line(folder):
        replace_keys(trial.folder, numbers)
    sync_or_say(trial.folder, "the old keys are still let in")
    for number in numbers:
        click.echo(f"copy {folder / 'nodes' / str(number)}/key to device {number}, and start its node again")


@fleet.command()
@folder_argument
@click.option("--authority", is_flag=True, help="Also a new authority: the old one's key was lost or stolen.")
@click.option("--credential", is_flag=True, help="Also a new secret for commands.")
def renew(folder: Path, authority: bool, credential: bool) -> None:
    """Write a new certificate for the SuperLink and its proxy; the authority and the nodes' keys stay."""
    from fedlga.backends.flower.deployment import renew as write_new
    from fedlga.backends.flower.registry import list_certificates

    trial = open_fleet(folder)
    with in_one_line(folder):
        write_new(trial.folder, authority=authority, credential=credential)
    for name, expiry in list_certificates(trial.folder).items():
        click.echo(f"{name}: valid until {expiry}")
    click.echo(f"copy {folder / 'superlink'}/ to the machine that aggregates; start the SuperLink and the proxy again")
    if authority:
        click.echo(f"copy ca.crt from {folder / 'nodes'}/*/ to every device, and start its node again")


@fleet.command()
@folder_argument
def sync(folder: Path) -> None:
    """Let the SuperLink know the keys in DIR/nodes, and no others."""
    from fedlga.backends.flower.registry import sync as sync_keys

    sync_keys(open_fleet(folder).folder, click.echo)
    click.echo("the SuperLink knows the keys of this fleet, and no others")


def sync_or_say(folder: Path, otherwise: str) -> None:
    """Sync keys; if the SuperLink does not answer, say what that means, and fail."""
    from fedlga.backends.flower.registry import sync as sync_keys

    try:
        sync_keys(open_fleet(folder).folder, click.echo)
    except BadInput as error:
        raise Stopped(f"{otherwise}: {error}; when it is up: fedlga fleet sync {quote(str(folder))}") from error


@fleet.command()
@folder_argument
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def status(folder: Path, as_json: bool) -> None:
    """Show devices, keys, certificates and ports."""
    from fedlga.backends.flower.registry import list_certificates, list_devices

    trial = open_fleet(folder)
    certificates, ports = list_certificates(trial.folder), trial.settings.ports()
    problem = None
    try:
        devices = list_devices(trial.folder)
    except BadInput as error:
        devices, problem = [], str(error)
    if as_json:
        values = {"devices": [vars(device) for device in devices], "certificates": certificates, "ports": ports}
        click.echo(json.dumps({**values, "problem": problem}))
    else:
        for device in devices:
            words = f"device {device.number}: {device.state}"
            words += f", works for run {device.run}" if device.run is not None else ""
            click.echo(words + (f" ({device.seen})" if device.seen else ""))
        for name, expiry in certificates.items():
            click.echo(f"certificate of the {name}: valid until {expiry}")
        click.echo("ports: " + ", ".join(f"{name} {port}" for name, port in ports.items()))
    if problem is not None:
        raise Stopped(problem)


@fleet.command()
@folder_argument
@click.option("--keep", default=10, show_default=True, help="Finished runs to keep, the newest.")
@click.option("--days", default=0.0, show_default=True, help="Also keep what is younger than this.")
@click.option("--unfinished", is_flag=True, help="Also runs that could be continued.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
def prune(folder: Path, keep: int, days: float, unfinished: bool, dry_run: bool) -> None:
    """Remove old runs. A run that goes on is never removed."""
    from fedlga.experiments.retention import prune_runs

    trial = open_fleet(folder)
    runs = trial.folder / "superlink" / "runs"
    removed = prune_runs(runs, keep=keep, days=days, unfinished=unfinished, dry_run=dry_run)
    for path, size in removed:
        click.echo(f"{'would remove' if dry_run else 'removed'}: {path} ({size / 1e6:.1f} MB)")
    click.echo(f"{len(removed)} runs, {sum(size for _, size in removed) / 1e6:.1f} MB")


@fleet.command()
@folder_argument
@click.option("--listen", default="127.0.0.1", show_default=True, help="Address to listen on.")
def monitor(folder: Path, listen: str) -> None:
    """Serve /metrics for Prometheus, and /health, about the runs in DIR, until it is stopped."""
    from fedlga.experiments.monitor import serve

    serve(folder.resolve(), listen, click.echo)
