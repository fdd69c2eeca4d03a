"""fedlga deadline: suggest a deadline for a fleet with speeds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlga.cli.options import collect_changes, experiment_options, start_from
from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from fedlga.fleets.speeds import SpeedFleet


@click.command()
@experiment_options
@click.option("--seed", type=int, metavar="S", help="Seed of the speeds.")
def deadline(
    experiment: Path | None, preset: str | None, sets: tuple[str, ...], data_dir: str | None, **flags: Any
) -> None:
    """Suggest a deadline for a fleet with speeds: what each choice costs, and how many finish by it."""
    import numpy as np

    from fedlga.cli.listing import echo_wrapped
    from fedlga.cli.terminal import Display
    from fedlga.experiments.simulation import fit_experiment, load_data, make_fleet, split_data
    from fedlga.fleets.speeds import SpeedFleet, suggest_deadline

    changes = collect_changes(flags, sets)
    base = start_from(experiment, preset)
    chosen = base.changed({"fleet": "speeds", "deadline": base.deadline or 1.0, **changes})
    with Display() as display:
        loaded = load_data(chosen, data_dir, display.show_fetch)
    chosen, problem = fit_experiment(chosen, loaded)
    fleet = make_fleet(chosen, split_data(chosen, loaded, problem), problem.model)
    if not isinstance(fleet, SpeedFleet):
        raise BadInput(f"fleet: got {chosen.fleet!r}; a deadline is suggested for fleet 'speeds'")
    needs = np.array([steps / speed for steps, speed in zip(fleet.workload.steps, fleet.speed_of, strict=True)])
    if base.fleet != chosen.fleet and "fleet" not in changes:
        echo_wrapped(f"fleet {base.fleet!r} has no speeds; this is for fleet 'speeds' with {describe_speeds(fleet)}")
    else:
        echo_wrapped(f"fleet 'speeds' with {describe_speeds(fleet)}")
    click.echo(f"{len(needs)} devices need {needs.min():.3g} to {needs.max():.3g} s for all their work")
    click.echo("deadline s   finish   the others get done")
    suggested = suggest_deadline(needs.tolist())
    # A fleet of few speeds has few choices: each is shown once.
    for limit in sorted({suggested, *(float(np.quantile(needs, share)) for share in (0.25, 0.5, 0.75, 0.9, 1.0))}):
        late = needs[needs > limit]
        done = f"{float(np.mean(limit / late)):.0%} of their work" if len(late) else "-"
        click.echo(f"{limit:>10.3g}   {float(np.mean(needs <= limit)):>6.0%}   {done}")
    fleet_too = "" if base.fleet == "speeds" else "--set fleet=speeds "
    deadline_text = f"--set deadline={suggested:.3g}"
    if suggested >= needs.max():
        click.echo(f"suggested: {fleet_too}{deadline_text}; all devices are equally fast, so all finish by it")
    else:
        click.echo(f"suggested: {fleet_too}{deadline_text} with --stragglers complete")


def describe_speeds(fleet: SpeedFleet) -> str:
    """Return where the speeds of a fleet come from, with the settings that say so."""
    if fleet.slow_classes:
        classes = ",".join(map(str, fleet.slow_classes))
        return f"slow_classes={classes} slow_speed={fleet.slow_speed:g} speed_median={fleet.speed_median:g}"
    if fleet.speeds:
        return "the speeds that were given"
    return f"speed_median={fleet.speed_median:g} speed_sigma={fleet.speed_sigma:g} (steps a second, log-normal)"
