"""fedlga paper: the paper's tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from fedlga.cli.interrupts import Interrupts, find_code
from fedlga.cli.options import split_list
from fedlga.core.settings import BadInput


@click.command()
@click.argument("item", required=False)
@click.option("--list", "show_list", is_flag=True, help="List the items: what each shows, and what the paper says.")
@click.option("--dataset", default="fashion-mnist", show_default=True, metavar="D", help="Or cifar-10, cifar-100.")
@click.option("--seeds", "seed_text", metavar="S", help="Seeds, such as 0-4 or 0,3,7. Default: 0-4; with --quick: 0-1.")
@click.option("--small", is_flag=True, help="CIFAR: a smaller setting than the paper's, an hour or so on two cores.")
@click.option("--batches", is_flag=True, help="CIFAR: the paper's model, a batch a unit of work; an hour a run.")
@click.option("--methods", "method_text", metavar="M,M,...", help="Some of the methods. Default: all of the item's.")
@click.option("--rounds", type=click.IntRange(1), metavar="T", help="Only the first rounds, as a setting of its own.")
@click.option("--quick", is_flag=True, help="Try everything, in minutes; the runs are too short to draw conclusions.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("paper"), show_default=True)
@click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache.")
def paper(
    item: str | None,
    show_list: bool,
    dataset: str,
    seed_text: str | None,
    small: bool,
    batches: bool,
    method_text: str | None,
    rounds: int | None,
    quick: bool,
    out: Path,
    data_dir: str | None,
) -> int:
    """Make a table and figure of the paper: ITEM is one of --list, or all.

    Runs what is missing, and continues what was interrupted. OUT/ITEM/ then holds the figure (.svg, .png, .pdf), the
    table with the paper's numbers beside ours and whether its claims hold here (.md), and every run (.csv).
    """
    from fedlga.paper.items import ITEMS

    if show_list or item is None:
        for entry in ITEMS.values():
            where = f" ({' and '.join(entry.claimed_of)} alone)" if entry.claimed_of else ""
            click.echo(f"{entry.name:<9} {entry.title}\n{'':<9}   {'ours: ' if entry.ours else ''}{entry.says}{where}")
        click.echo("all       all of them, the least work first")
        return 0 if show_list else 2

    from fedlga.backends.pool.workers import Workers
    from fedlga.cli.terminal import Display, describe_outcome
    from fedlga.core.process import keep_freed_memory
    from fedlga.experiments.parsing import parse_seeds
    from fedlga.experiments.records import read_summary
    from fedlga.experiments.simulation import check_fit, load_data, worker_count
    from fedlga.paper.page import write_item
    from fedlga.paper.runs import check_same_experiments, find_missing, perform, plan_items
    from fedlga.paper.settings import make_setting

    keep_freed_memory()
    chosen = [name for name, given in (("--small", small), ("--batches", batches), ("--quick", quick)) if given]
    if len(chosen) > 1:
        raise BadInput(f"{chosen[1]}: got it with {chosen[0]}; take one of them")
    if chosen and chosen[0] != "--quick" and dataset not in ("cifar-10", "cifar-100"):
        raise BadInput(f"{chosen[0]}: got it with {dataset}; it is for cifar-10 and cifar-100")
    setting = make_setting(dataset, small=small, batches=batches, quick=quick)
    setting = setting if rounds is None else setting.cut(rounds)
    methods = split_list(method_text or "")
    seeds = parse_seeds(seed_text or ("0-1" if quick else "0-4"))
    items = plan_items([item], setting, seeds, out, methods)
    missing = find_missing(items)
    folders = {folder for runs in items for _, folder in runs.all()}
    check_same_experiments([run for runs in items for run in runs.all()])
    command = " ".join(["fedlga", *sys.argv[1:]])
    workers = Workers(worker_count(setting.base)) if missing and setting.base.backend == "pool" else None
    complete, code = True, 0
    try:
        with Display() as display, Interrupts(display.say) as interrupts:
            done = len(folders) - len(missing)
            display.say(f"{setting.name}: {setting.note}")
            display.say(f"{len(missing)} runs to do" + (f", {done} done before" if done else "") + f", into {out}")
            data = load_data(setting.base, data_dir, display.show_fetch) if missing else None
            if data is not None:
                check_fit(setting.base, data)
                display.begin(sum(e.rounds for e, _ in missing))
            before = 0
            for runs in items:
                own = find_missing([runs])
                for step in perform(own, data, workers):
                    e, folder = own[step.number - 1]
                    if step.record is not None:
                        display.show_round(step.record, before + step.record.round)
                    else:
                        before += e.rounds
                        display.say(
                            f"{runs.item.name}: {_locate(folder, out)}: {describe_outcome(read_summary(folder))}"
                        )
                    if interrupts.between_rounds():
                        complete, code = False, interrupts.code
                        break
                if not complete:
                    break
                write_item(runs, command)
                display.say(f"written: {out / runs.item.name}/{setting.name}.md .csv .svg .png .pdf")
    except KeyboardInterrupt as error:
        complete, code = False, find_code(error)
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(error.filename or out)!r} ({error.strerror})") from error
    finally:
        if workers is not None:
            workers.close()
    if not complete:
        click.echo("stopped; the same command continues from here")
    return code


def _locate(folder: Path, out: Path) -> str:
    """Return which run a folder is: point, method and seed."""
    return " ".join(folder.relative_to(out / "runs").parts[1:])
