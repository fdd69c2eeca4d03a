"""fedlga audit: how close completed updates come to the true ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fedlga.cli.options import check_suffix, check_writable
from fedlga.core.settings import choose


@click.command()
@click.option("--preset", default="paper", show_default=True, metavar="NAME", help="digits: try it on small data.")
@click.option("--all", "every", is_flag=True, help="Also iid and Dirichlet partitions, and CIFAR-10.")
@click.option("--only", metavar="REGIME", help="One row, such as 'batch, 0.1'.")
@click.option("--rounds", type=int, metavar="T", help="Rounds of each regime. Default: 150 of batches, 40 of epochs.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write it: .csv.")
def audit(
    preset: str,
    every: bool,
    only: str | None,
    rounds: int | None,
    seed: int,
    data_dir: str | None,
    out: Path | None,
) -> None:
    """Measure how close completed updates come to the true ones: a table over regimes and scales.

    1 is the error of updates as they were sent; below 1 is closer to the truth. The last columns: the best possible
    multiple of what was sent; and, with the default scale, the error of a round's averaged update and of the averaged
    updates added up over the run. It is a diagnostic: the scale with the smallest error need not train best.
    """
    from fedlga.cli.terminal import Display, make_audit_table
    from fedlga.core.files import format_csv, write_atomically
    from fedlga.core.process import keep_freed_memory
    from fedlga.experiments.regimes import REGIMES, THE_FIVE, make_regime, run_regime

    keep_freed_memory()
    names = [choose("--only", only, REGIMES)] if only else list(REGIMES if every else THE_FIVE)
    experiments = {name: make_regime(name, rounds=rounds, seed=seed, base=preset) for name in names}
    if out is not None:
        check_suffix(out, ".csv")
        check_writable(out)
    rows: list[dict[str, Any]] = []
    with Display() as display:
        display.begin(sum(e.rounds for e in experiments.values()))
        before = 0
        for name, e in experiments.items():
            for step in run_regime(e, data_dir=data_dir, progress=display.show_fetch):
                if step.record is None:
                    rows.append({"regime": name, "rounds": e.rounds, **step.row})
                else:
                    display.show_round(step.record, before + step.record.round)
            before += e.rounds
            display.say(f"{name}: feedback {rows[-1]['feedback']:.2f}, best {rows[-1]['best']:.2f}")
            if out is not None:
                write_atomically(out, format_csv(rows))
    display.console.print(make_audit_table(rows))
    if out is not None:
        display.say(f"written: {out}")
