"""The commands that make results: the paper's items, and reports."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .settings import BadInput


@click.command()
@click.argument("item", required=False)
@click.option("--list", "listed", is_flag=True, help="The items: what each shows, and what the paper says.")
@click.option("--dataset", default="fashion-mnist", show_default=True, metavar="D", help="Or cifar-10, cifar-100.")
@click.option("--seeds", "seed_text", metavar="S", help="Such as 0-4, which is the default; with --quick: 0-1.")
@click.option("--small", is_flag=True, help="CIFAR: a smaller setting than the paper's, an hour or so on two cores.")
@click.option("--quick", is_flag=True, help="A try of everything, in minutes; too short to judge by.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("paper"), show_default=True)
@click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache.")
def paper(
    item: str | None,
    listed: bool,
    dataset: str,
    seed_text: str | None,
    small: bool,
    quick: bool,
    out: Path,
    data_dir: str | None,
) -> int:
    """Make a table and figure of the paper: ITEM is one of --list, or all.

    Runs what is missing, goes on with what was interrupted. OUT/ITEM/ then holds the figure (.svg, .png, .pdf), the
    table with the paper's numbers beside ours and whether its claims hold here (.md), and every run (.csv).
    """
    from .paper import ITEMS

    if listed or item is None:
        for entry in ITEMS.values():
            click.echo(f"{entry.name:<9} {entry.title}\n{'':<9}   {entry.says}")
        click.echo("all       all of them, the least work first")
        return 0 if listed else 2

    from .backends.pool import Workers
    from .cli import Interrupts
    from .display import Display, outcome
    from .experiment import seeds
    from .paper import begun_otherwise, missing, performed, setting, summary_of, works, write
    from .simulation import check, load_data, worker_count

    if small and dataset not in ("cifar-10", "cifar-100"):
        raise BadInput(f"--small: got it with {dataset}; it is for cifar-10 and cifar-100")
    chosen = setting(dataset, small=small, quick=quick)
    numbers = seeds(seed_text or ("0-1" if quick else "0-4"))
    todo = works([item], chosen, numbers, out)
    runs = missing(todo)
    folders = {folder for work in todo for _, folder in work.all()}
    begun_otherwise([run for work in todo for run in work.all()])
    command = " ".join(["fedlga", *sys.argv[1:]])
    workers = Workers(worker_count(chosen.base)) if runs and chosen.base.backend == "pool" else None
    whole = True
    try:
        with Display() as display, Interrupts(display.say) as interrupts:
            done = len(folders) - len(runs)
            display.say(f"{chosen.name}: {chosen.note}")
            display.say(f"{len(runs)} runs to do" + (f", {done} done before" if done else "") + f", into {out}")
            data = load_data(chosen.base, data_dir, display.fetching) if runs else None
            if data is not None:
                check(chosen.base, data)
                display.begin(sum(e.rounds for e, _ in runs))
            before = 0
            for work in todo:
                mine = missing([work])
                for step in performed(mine, data, workers):
                    e, folder = mine[step.number - 1]
                    if step.record is not None:
                        display.round(step.record, before + step.record.round)
                    else:
                        before += e.rounds
                        display.say(f"{work.item.name}: {_where(folder, out)}: {outcome(summary_of(folder))}")
                    if interrupts.between_rounds():
                        whole = False
                        break
                if not whole:
                    break
                write(work, command)
                display.say(f"written: {out / work.item.name}/{chosen.name}.md .csv .svg .png .pdf")
    except KeyboardInterrupt:
        whole = False
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(error.filename or out)!r} ({error.strerror})") from error
    finally:
        if workers is not None:
            workers.close()
    if not whole:
        click.echo("stopped; the same command goes on from here")
    return 0 if whole else 1


def _where(folder: Path, out: Path) -> str:
    """A run by its place: point, method and seed."""
    return " ".join(folder.relative_to(out / "runs").parts[1:])


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Default: report.html in the first DIR.")
def report(folders: tuple[Path, ...], out: Path | None) -> None:
    """One HTML page about a run, a comparison, or several: everything in one file, to look at or to send."""
    from .report import collected, page
    from .runs import write_atomically

    groups = collected(folders)
    file = out or folders[0] / "report.html"
    if file.is_dir():
        raise BadInput(f"--out: {str(file)!r} is a folder; it takes a file")
    text = page(groups)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, text)
    except OSError as error:
        raise BadInput(f"--out: cannot write {str(file)!r} ({error.strerror})") from error
    click.echo(f"written: {file} ({file.stat().st_size / 1e6:.1f} MB), {sum(len(g.runs) for g in groups)} runs")
