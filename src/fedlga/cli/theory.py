"""fedlga theory: what the paper's convergence theorems say of an experiment."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from fedlga.cli.options import check_writable, collect_changes, experiment_options, start_from
from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from fedlga.theory.assess import Assessment, Outcome
    from fedlga.theory.estimates import Interval
    from fedlga.theory.theorems import Condition

WIDTH = 80  # columns
IN_WORDS = {
    "local rate": "the local rate",
    "both rates": "both rates together",
    "progress": "what local steps and sampling take from progress",
}


@click.command()
@experiment_options
@click.option("--method", metavar="M", help="See fedlga list methods.")
@click.option("--stragglers", metavar="POLICY", help="wait, drop, keep or complete.")
@click.option("--seed", type=int, metavar="S", help="Seed of the random number generators.")
@click.option(
    "--run",
    "run_folder",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Compare with what this run did: one with --record gradient. It also says which experiment.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write it: .json.")
@click.option("--lowest", type=float, default=0.0, show_default=True, help="What the loss cannot fall below.")
def theory(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    run_folder: Path | None,
    out: Path | None,
    lowest: float,
    **flags: Any,
) -> None:
    """Say what the paper's convergence theorems say of an experiment: FILE.py, EXPERIMENT.toml, or a preset.

    Measures the federation at its starting weights (some ten seconds for the preset paper), checks the theorems'
    conditions on the rates, and computes their bound on the gradient: see docs/theory.md.
    """
    from fedlga.cli.terminal import Display, describe_experiment
    from fedlga.core.files import write_atomically
    from fedlga.core.process import keep_freed_memory
    from fedlga.experiments.records import EXPERIMENT, read_run
    from fedlga.theory.assess import assess, shorten, summarise_gradients

    keep_freed_memory()
    changes = collect_changes(flags, sets)
    outcome, rounds = None, 0
    if run_folder is None:
        chosen = start_from(experiment, preset).changed(changes)
    else:
        if experiment or preset or changes:
            raise BadInput("--run: got it with another experiment or changes to it; the folder holds the experiment")
        if not (run_folder / EXPERIMENT).is_file():
            raise BadInput(f"--run: {str(run_folder)!r} holds no run; it takes the folder of one")
        run = read_run(run_folder)
        chosen, outcome, rounds = run.experiment, summarise_gradients(run.records), len(run.records)
        if outcome is None:
            raise BadInput(f"--run: {str(run_folder)!r} did not record the gradient; run it with --record gradient")
    if out is not None:
        check_writable(out)
    with Display() as display:
        display.say("measuring the federation at its starting weights ...")
        assessment = shorten(assess(chosen, data_dir=data_dir, progress=display.show_fetch, lowest=lowest), rounds)
    click.echo(describe_experiment(assessment.experiment))
    for line in describe(assessment, outcome):
        click.echo(line)
    if out is not None:
        write_atomically(out, json.dumps(as_plain(assessment, outcome), indent=2, allow_nan=False) + "\n")
        click.echo(f"written: {out}")


def as_plain(a: Assessment, outcome: Outcome | None) -> dict[str, Any]:
    """Return all numbers of an assessment as plain values; what is infinite is None."""
    values: dict[str, Any] = {
        "experiment": a.experiment.as_dict(),
        "theorem": a.setting.theorem,
        "covered": a.covered,
        "applies": a.applies,
        "setting": asdict(a.setting),
        "estimates": asdict(a.estimates),
        "completion_error": None if a.completion_error is None else asdict(a.completion_error),
        "constants": asdict(a.constants),
        "conditions": [{**asdict(condition), "holds": condition.holds} for condition in a.conditions],
        "largest": {"eta_l": a.largest_lr, "eta_g": a.largest_eta_g},
        "corollary": {
            "eta_l": a.corollary.eta_l,
            "eta_g": a.corollary.eta_g,
            "holds": a.corollary_holds,
            "fewest_rounds": a.fewest_rounds,
        },
        "best": {"eta_l": a.best_lr, "eta_g": a.setting.eta_g},
        "bounds": {
            name: {**asdict(bound), "total": bound.total}
            for name, bound in (("these", a.bound), ("corollary", a.corollary_bound), ("best", a.best_bound))
        },
        "departures": [departure.line for departure in a.departures],
        "run": None if outcome is None else asdict(outcome),
    }
    return replace_infinite(values)


def replace_infinite(value: Any) -> Any:
    """Return plain values with None for what is not a finite number, which JSON does not have."""
    if isinstance(value, dict):
        return {name: replace_infinite(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [replace_infinite(inner) for inner in cast("list[Any]", value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def describe(a: Assessment, outcome: Outcome | None = None) -> Iterator[str]:
    """Yield an assessment, line by line, within 80 columns: plain words first, symbols after them."""
    yield ""
    yield from _describe_answer(a, outcome)
    yield ""
    yield from _describe_measurements(a)
    yield ""
    yield from _describe_conditions(a)
    yield ""
    yield from _describe_bound(a, outcome)
    if a.departures:
        yield ""
        yield "Not as the theorem assumes:"
        for departure in a.departures:
            yield from textwrap.wrap(departure.line, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _describe_answer(a: Assessment, outcome: Outcome | None) -> Iterator[str]:
    s, failing, start = a.setting, sum(not c.holds for c in a.conditions), a.estimates.squared_gradient.value
    text = "" if a.covered else "The theorems are not about this algorithm: see the end. With plain averaging: "
    if a.applies:
        text += (
            f"The rates are small enough for Theorem {s.theorem}. It promises that in {s.T} rounds the squared "
            f"gradient falls to {_number(a.bound.total)} or less. "
        )
        if a.bound.total >= start:
            text += f"That is nothing: it starts at {_number(start)}."
        else:
            text += f"It starts at {_number(start)}."
    else:
        text += (
            f"The rates are too large for Theorem {s.theorem}, which promises nothing then: {failing} of "
            f"{len(a.conditions)} conditions fail. With eta_g = {s.eta_g:g} it needs eta_l = "
            f"{_round_down(a.largest_lr)} or less."
        )
    if outcome is not None:
        fell = outcome.smallest < start
        text += f" The run's squared gradient {'fell to' if fell else 'did not fall: its smallest was'} "
        text += f"{_number(outcome.smallest)}, in round {outcome.round}."
    yield from textwrap.wrap(text, WIDTH)


def _describe_measurements(a: Assessment) -> Iterator[str]:
    e = a.estimates
    who = f"all {e.devices}" if e.measured == e.devices else f"{e.measured} of {e.devices}"
    yield f"Measured at the starting weights, {who} devices, with 95 % intervals"
    rows: list[tuple[str, str, Interval]] = [
        ("how fast gradients change", "L", e.curvature),
        ("noise of a batch's gradient", "sigma_l", e.local_variance.root()),
        ("difference between devices' gradients", "sigma_g", e.global_variance.root()),
        ("length of a device's gradient", "|grad F_i|", e.gradient_length),
        ("loss on all training data", "f", e.objective),
        ("squared length of its gradient", "|grad f|^2", e.squared_gradient),
    ]
    if a.completion_error is not None:
        rows.append(("error of a completed update", "", a.completion_error))
    for words, symbol, value in rows:
        between = "" if value.is_exact else f" [{_number(value.low)}, {_number(value.high)}]"
        yield f"  {words:<37} {symbol:<10} {_number(value.value):>8}{between}"
    if a.completion_error is not None:
        yield f"  {'the same as a remainder, by Lemma 1':<37} {'M':<10} {_number(a.constants.M):>8}"
    yield "L is the largest found, a lower limit; its interval ends where the search did."
    s = a.setting
    yield (
        f"Theorem {s.theorem} sees N = {s.N}"
        + (f", K = {s.K}" if s.K is not None else "")
        + (f", E = {s.E}, T = {s.T}, rho = {s.rho:.2g}, tau_max = {s.tau_max:g}")
    )


def _describe_conditions(a: Assessment) -> Iterator[str]:
    s = a.setting
    yield f"{'Are the rates small enough?':<57} {'value':>8}   {'limit':>8}"
    for condition in a.conditions:
        yield _describe_condition(condition)
        yield f"       {condition.formula}"
    yield f"Largest local rate with eta_g = {s.eta_g:g}: eta_l = {_round_down(a.largest_lr)}"
    eta_g = f"eta_g = {_round_down(a.largest_eta_g)}" if a.largest_eta_g > 0 else "none"
    yield f"Largest global rate with eta_l = {s.eta_l:g}: {eta_g}"
    rates = f"eta_l = {_number(a.corollary.eta_l)}, eta_g = {_number(a.corollary.eta_g)}"
    yield f"Suggested by its corollary for {s.T} rounds: {rates}"
    if not a.corollary_holds:
        yield f"  These are too large in {s.T} rounds: the corollary needs {a.fewest_rounds}."


def _describe_condition(condition: Condition) -> str:
    sign = ("<" if condition.strict else "<=") if condition.holds else (">=" if condition.strict else ">")
    words = f"{'yes' if condition.holds else 'NO':<3}  {IN_WORDS[condition.name]}"
    return f"  {words:<55} {_number(condition.value):>8} {sign:<2} {_number(condition.limit):>8}"


def _describe_bound(a: Assessment, outcome: Outcome | None) -> Iterator[str]:
    letter = "d" if a.setting.partial else "c"
    yield f"{'Bound on the smallest squared gradient with':<44} {'these':>10} {'suggested':>11} {'best':>10}"
    rates = (a.setting.eta_l, a.corollary.eta_l, a.best_lr)
    yield f"  {'local rate':<28} {'eta_l':<13}" + _columns(rates)
    yield f"  {'global rate':<28} {'eta_g':<13}" + _columns((a.setting.eta_g, a.corollary.eta_g, a.setting.eta_g))
    drawn = ", who is drawn" if a.setting.partial else ""
    terms = (
        ("what is left of the start", f"over {letter}_1 T", "start"),
        (f"batch noise{drawn}", "in Phi", "noise"),
        ("devices that drift apart", "in Phi", "drift"),
        ("errors of completed updates", "in Phi", "completion"),
        ("together", "|grad f|^2 <=", "total"),
    )
    for words, symbol, name in terms:
        bounds = (a.bound, a.corollary_bound, a.best_bound)
        yield f"  {words:<28} {symbol:<13}" + _columns([getattr(bound, name) for bound in bounds])
    if a.constants.M:
        yield f"All with M as measured at eta_l = {a.setting.eta_l:g}; at lower rates it is larger."
    if outcome is not None:
        every = "" if outcome.recorded == outcome.rounds else f" ({outcome.recorded} recorded)"
        yield f"  {f'what the run did, {outcome.rounds} rounds{every}':<42}" + _columns([outcome.smallest])


def _columns(values: Sequence[float]) -> str:
    return "".join(f" {_number(value):>{width}}" for value, width in zip(values, (10, 11, 10), strict=False)).rstrip()


def _round_down(value: float) -> str:
    """Return a number with three digits that is not above it: an upper limit, which has to hold as printed."""
    if not (math.isfinite(value) and value > 0):
        return _number(value)
    digit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / digit) * digit:.3g}"


def _number(value: float) -> str:
    """Return a number with three digits."""
    if math.isinf(value):
        return "none"
    return f"{value:.3g}" if abs(value) < 1e5 else f"{value:.1e}"  # noqa: PLR2004
