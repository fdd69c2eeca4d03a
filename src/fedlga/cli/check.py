"""fedlga check: run the contract of a kind on a class of your own."""

from __future__ import annotations

import click


@click.command()
@click.argument("kind")
@click.argument("name", metavar="NAME")
def check(kind: str, name: str) -> int:
    """Check a class of your own: KIND is method, policy, fleet, ...; NAME is package.module:Class."""
    from fedlga.cli.listing import check_kind
    from fedlga.contracts import run_contract

    broken = 0
    for outcome in run_contract(check_kind(kind), name):
        if outcome.problem is not None:
            broken += 1
            click.echo(f"FAILS    {outcome.what}\n         {outcome.problem}")
        else:
            click.echo(f"{'ok' if outcome.skipped is None else 'skipped':<8} {outcome.what}")
            if outcome.skipped is not None:
                click.echo(f"         {outcome.skipped}")
    return 1 if broken else 0
