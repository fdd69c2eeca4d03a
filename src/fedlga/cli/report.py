"""fedlga report: one HTML page about runs."""

from __future__ import annotations

from pathlib import Path

import click

from fedlga.cli.options import check_suffix, check_writable, count
from fedlga.core.settings import Stopped


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Default: report.html in the first DIR.")
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """Make one HTML page about a run, a comparison, or several: everything in one file."""
    from fedlga.core.files import write_atomically
    from fedlga.report.page import collect_runs, make_page

    groups = collect_runs(folders)
    file = out or folders[0] / "report.html"
    check_suffix(file, ".html", ".htm")
    check_writable(file)
    text = make_page(groups)
    try:
        write_atomically(file, text)
    except OSError as error:
        raise Stopped(f"cannot write {str(file)!r} ({error.strerror})") from error
    runs = count(sum(len(group.runs) for group in groups), "run")
    click.echo(f"written: {file} ({file.stat().st_size / 1e6:.1f} MB), {runs}")
