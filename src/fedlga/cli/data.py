"""fedlga data: datasets and who holds what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedlga.cli.options import collect_changes, experiment_options, start_from
from fedlga.core.settings import BadInput


@click.group()
def data() -> None:
    """List datasets, fetch them, show who holds what."""


@data.command("list")
@click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache.")
def data_list(data_dir: str | None) -> None:
    """List the datasets, and whether they are here."""
    from fedlga.core.registry import create, names_of
    from fedlga.learning.datasets.cache import cache_folder

    cache = cache_folder(data_dir)
    for name in names_of("dataset"):
        dataset = create("dataset", name)
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
    from fedlga.core.registry import create
    from fedlga.learning.datasets.cache import cache_folder, fetch

    cache = cache_folder(data_dir)
    dataset = create("dataset", name)
    with Display() as display:
        folder = fetch(name, cache, display.show_fetch) if dataset.files else None
        for file in dataset.files:
            dataset.verify((folder or cache) / file)
    click.echo(f"{name}: {folder or 'part of the package'}, complete and as published")


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
    from fedlga.cli.terminal import Display
    from fedlga.experiments.simulation import load_data, split_data
    from fedlga.learning.partitions.base import count_classes
    from fedlga.report.partition import draw_partition, format_partition

    chosen = start_from(experiment, preset).changed(collect_changes(flags, sets))
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"--out: got {str(out)!r}; it takes a file that ends in .png, .svg or .pdf")
    with Display() as display:
        loaded = load_data(chosen, data_dir, display.show_fetch)
    table = count_classes(split_data(chosen, loaded), loaded.train_labels.numpy(), loaded.classes)
    title = f"{chosen.dataset}, {chosen.devices} devices, partition {chosen.partition}, seed {chosen.seed}"
    click.echo(title)
    click.echo(format_partition(table))
    if out is not None:
        draw_partition(table, title, out)
        click.echo(f"drawn: {out}")
