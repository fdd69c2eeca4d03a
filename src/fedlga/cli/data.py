"""fedlga data: datasets and who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlga.cli.options import check_writable, collect_changes, experiment_options, start_from
from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from fedlga.learning.datasets.base import FileSet


@click.group()
def data() -> None:
    """List datasets, fetch them, show who holds what."""


@data.command("list")
@click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache.")
def data_list(data_dir: str | None) -> None:
    """List the datasets, and whether they are here."""
    from fedlga.core.registry import names_of
    from fedlga.learning.datasets.cache import cache_folder

    cache = cache_folder(data_dir)
    for name in (*names_of("dataset"), *names_of("task")):
        dataset = find_files(name)
        here = "part of the package" if not dataset.files else "not fetched"
        if dataset.files and not dataset.missing(cache / dataset.folder):
            here = f"in {cache / dataset.folder}"
        click.echo(f"{name:<14} {dataset.title}\n{'':<14} {here}")


@data.command("fetch")
@click.argument("name")
@click.option("--data-dir", metavar="DIR", help="Where to keep it. Default: $FEDLGA_DATA, or your cache.")
def data_fetch(name: str, data_dir: str | None) -> None:
    """Fetch a dataset and check every byte of it."""
    from fedlga.cli.terminal import Display
    from fedlga.learning.datasets.cache import cache_folder, fetch_files

    cache = cache_folder(data_dir)
    dataset = find_files(name)
    with Display() as display:
        folder = fetch_files(name, dataset, cache, display.show_fetch) if dataset.files else None
        for file in dataset.files:
            dataset.verify((folder or cache) / file)
    click.echo(f"{name}: {folder or 'part of the package'}, complete and as published")


def find_files(name: str) -> FileSet:
    """Return the files of a dataset, or of a built-in task."""
    from fedlga.core.registry import create, find, names_of

    return find("task", name).files if name in names_of("task") else create("dataset", name)


@data.command("show")
@experiment_options
@click.option("--seed", type=int, metavar="S", help="Seed of the partition.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Also draw it: .png, .svg or .pdf.")
def data_show(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    out: Path | None,
    **flags: Any,
) -> None:
    """Show who holds what: how many examples of each class every device has."""
    import numpy as np

    from fedlga.cli.terminal import Display
    from fedlga.experiments.simulation import fit_experiment, load_data, split_data
    from fedlga.report.partition import draw_partition, format_partition

    chosen = start_from(experiment, preset).changed(collect_changes(flags, sets))
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"--out: got {str(out)!r}; it takes a file that ends in .png, .svg or .pdf")
    if out is not None:
        check_writable(out)
    with Display() as display:
        loaded = load_data(chosen, data_dir, display.show_fetch)
    chosen, problem = fit_experiment(chosen, loaded)
    split = split_data(chosen, loaded, problem)
    table = np.array([[len(part)] for part in split.parts]) if split.held is None else split.held
    title = f"{chosen.subject}, {chosen.devices} devices, partition {chosen.partition}, seed {chosen.seed}"
    click.echo(title)
    click.echo(format_partition(table))
    if out is not None:
        draw_partition(table, title, out)
        click.echo(f"drawn: {out}")
