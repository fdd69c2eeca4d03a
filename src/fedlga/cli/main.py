"""The command line. Exit codes: 0 done, 1 the run failed or was stopped, 2 the call was wrong."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import __version__
from .cli_fleet import fleet
from .cli_results import paper, report
from .settings import BadInput

if TYPE_CHECKING:
    from types import FrameType

    from .experiment import Experiment


def main() -> None:
    """Run the command; a wrong call costs one line, never a traceback."""
    sys.path.append(str(Path.cwd()))  # so that a method or model of the user's own, in the folder he is in, is found
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        fail(error.format_message().replace("\n", " "))
    except BadInput as error:
        fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(1)
    except BrokenPipeError:  # `fedlga ... | head`
        sys.stderr.close()
        sys.exit(1)


def fail(message: str, code: int = 2) -> None:
    """One line, and out."""
    click.echo(f"fedlga: {message}", err=True)
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fedlga")
def cli() -> None:
    """Federated learning for devices that are not equal.

    \b
    fedlga run                                    FedLGA as in its paper, on Fashion-MNIST
    fedlga run --preset digits                    a first step, in seconds, without a download
    fedlga compare --methods fedavg,fedlga --seeds 0-4
    fedlga paper tau-max                          a table of the paper, and whether it holds here
    fedlga report runs/...                        a page to look at
    fedlga data show --preset paper               who holds what
    """


Command = Callable[..., Any]


def experiment_options(command: Command) -> Command:
    """The options that say which experiment is meant."""
    options = [
        click.argument("experiment", required=False, type=click.Path(dir_okay=False, path_type=Path)),
        click.option("--preset", metavar="NAME", help="Start from a preset: see fedlga presets. Default: paper."),
        click.option("--dataset", metavar="D", help="fashion-mnist, cifar-10, cifar-100 or digits."),
        click.option("--rounds", type=int, metavar="T", help="Rounds to train."),
        click.option("--target", type=float, metavar="A", help="Test accuracy to reach, such as 0.65."),
        click.option("--backend", metavar="B", help="serial, pool or flower."),
        click.option("--workers", type=int, metavar="W", help="Processes of the pool; 0: one a core."),
        click.option(
            "--audit", is_flag=True, default=None, help="Measure how close completed updates come to true ones."
        ),
        click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any field: see fedlga fields."),
        click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@cli.command()
@experiment_options
@click.option("--method", metavar="M", help="fedavg, fedprox, fednova, scaffold, feddyn or fedlga.")
@click.option("--stragglers", metavar="POLICY", help="wait, drop, keep or complete.")
@click.option("--seed", type=int, metavar="S", help="Of all draws.")
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="DIR", help="The run folder. Default: a new one in runs/."
)
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with a run that was stopped.")
@click.option("--superlink", metavar="NAME", help="Backend flower: on the nodes of this SuperLink, not simulated ones.")
def run(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    out: Path | None,
    resume: Path | None,
    superlink: str | None,
    **flags: Any,
) -> int:
    """Train a joint model: EXPERIMENT.toml, or a preset.

    DIR then holds experiment.toml, rounds.jsonl, summary.json, model.safetensors and a checkpoint.
    """
    from . import runs
    from .display import Display, headline, run_table
    from .flower.superlink import submitted

    changes = wanted(flags, sets)
    if superlink is not None:
        changes.setdefault("backend", "flower")
    if resume is not None:
        if experiment or preset or out:
            raise BadInput("--resume: got it with another experiment or --out; the folder holds the experiment")
        chosen, folder = runs.resumable(resume, changes), resume
    else:
        chosen = start_from(experiment, preset).changed(changes)
        folder = out or new_folder("runs", f"{chosen.method}-{chosen.dataset}-seed{chosen.seed}")
    if resume is None:
        runs.check_free(folder)
    if superlink is not None and chosen.backend != "flower":
        raise BadInput(f"--superlink: got it with backend {chosen.backend!r}; it goes with backend 'flower'")
    try:
        with Display() as display, Interrupts(display.say) as interrupts:
            display.say(headline(chosen))
            display.begin(chosen.rounds, done=len(runs.read(folder).records) if resume else 0)
            records = (
                runs.recorded(chosen, folder, resume=resume is not None, data_dir=data_dir, progress=display.fetching)
                if superlink is None
                else submitted(chosen, folder, superlink, resume=resume is not None, data_dir=data_dir)
            )
            stopped = False
            for record in records:
                display.round(record)
                if record.note:
                    display.say(f"round {record.round}: {record.note}")
                if stopped := interrupts.between_rounds():
                    break
            records.close()
    except KeyboardInterrupt:
        return stopped_at_once(folder, "run", superlink)
    if superlink is not None and (stopped or not (folder / "summary.json").exists()):
        display.say(f"run folder, on the SuperLink's machine: {folder.resolve()}")
        if stopped:
            display.say(f"to go on, there: fedlga run --resume {folder} --superlink {superlink}")
        return 1 if stopped else 0
    finished = runs.read(folder)
    display.console.print(run_table(finished.summary))
    display.say(f"run folder: {folder}")
    if not finished.summary["finished"]:
        display.say(f"to go on: fedlga run --resume {folder}" + (f" --superlink {superlink}" if superlink else ""))
    return 0 if finished.summary["finished"] and not finished.summary["diverged"] else 1


@cli.command()
@experiment_options
@click.option("--methods", metavar="M,M,...", help="Methods to compare. Default: all six, or fedavg with --stragglers.")
@click.option("--stragglers", "policies", metavar="P,P,...", help="Policies to compare. Default: each method's own.")
@click.option("--seeds", "seed_text", metavar="S", help="Such as 0-4, which is the default, or 0,3,7.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Default: a new folder in comparisons/.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="Go on with a comparison.")
def compare(
    experiment: Path | None,
    preset: str | None,
    sets: tuple[str, ...],
    data_dir: str | None,
    methods: str | None,
    policies: str | None,
    seed_text: str | None,
    out: Path | None,
    resume: Path | None,
    **flags: Any,
) -> int:
    """Compare methods and policies over the same seeds: mean and spread in one table.

    DIR then holds comparison.csv, runs.csv, comparison.json, and a run folder for each run.
    """
    from .backends.pool import Workers
    from .compare import Plan, begin, compared, draw, folder_of, table, write
    from .display import Display, comparison_table, end_table, outcome
    from .experiment import seeds
    from .methods import METHODS
    from .runs import check_free, read
    from .simulation import load_data, worker_count

    if resume is not None:
        if experiment or preset or out or methods or policies or seed_text or wanted(flags, sets):
            raise BadInput("--resume: got it with other options; the folder holds all of the comparison")
        plan, folder = Plan.load(resume), resume
    else:
        changes = wanted(flags, sets)
        if fixed := {"method", "stragglers", "seed"} & set(changes):
            raise BadInput(f"--set: {sorted(fixed)[0]} is what compare varies; use --methods, --stragglers, --seeds")
        plan = Plan(
            base=start_from(experiment, preset),
            changes=changes,
            methods=methods.split(",") if methods else ["fedavg"] if policies else list(METHODS),
            policies=policies.split(",") if policies else [],
            seeds=list(seeds(seed_text or "0-4")),
        )
        folder = out or new_folder("comparisons", "comparison")
    experiments = plan.experiments()
    if resume is None:
        check_free(folder)
    workers = Workers(worker_count(experiments[0])) if experiments[0].backend == "pool" else None
    ended = 0
    try:
        with Display() as display, Interrupts(display.say) as interrupts:
            loaded = load_data(experiments[0], data_dir, display.fetching)
            if resume is None:
                begin(plan, folder, loaded)
            display.say(f"{len(experiments)} runs into {folder}")
            display.begin(sum(e.rounds for e in experiments))
            steps = compared(plan, folder, loaded, workers)
            for step in steps:
                e, before = step.experiment, sum(x.rounds for x in experiments[: step.number - 1])
                if step.record is not None:
                    display.round(step.record, before + step.record.round)
                else:
                    ended = step.number
                    said = outcome(read(folder_of(folder, e)).summary)
                    display.say(f"{ended}/{len(experiments)} {e.method} ({e.policy}) seed {e.seed}: {said}")
                if interrupts.between_rounds():
                    break
            steps.close()
    except KeyboardInterrupt:
        return stopped_at_once(folder, "compare")
    finally:
        if workers is not None:
            workers.close()
    whole = ended == len(experiments)
    write(plan, folder)
    rows = table(plan, folder)
    display.console.print(comparison_table(rows, experiments[0].target))
    if (end := end_table(rows)) is not None:
        display.console.print(end)
        display.say(
            "slow, worst: on data like the slow devices', and the worst-served device's; error: of completed updates"
        )
    display.say("mean ± standard deviation over the seeds; seconds and rounds of the runs that reached the target;")
    display.say("v first: mean difference in rounds to the first row, seed by seed")
    drawn = [file.name for file in draw(plan, folder)]
    display.say(f"written: {folder}/{', '.join(['comparison.csv', 'runs.csv', 'comparison.json', *drawn])}")
    if not whole:
        display.say(f"to go on: fedlga compare --resume {folder}")
    return 0 if whole else 1


@cli.command()
@click.option("--preset", default="paper", show_default=True, metavar="NAME", help="digits tries it on small data.")
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
    """How close completed updates come to the true ones: a table over regimes and scales.

    1 is what doing nothing gives, below 1 is closer to the truth. The last columns: the best possible multiple of what
    was sent, and the error of the averaged update with the default scale.
    """
    from .display import Display, audit_table
    from .regimes import REGIMES, THE_FIVE, audited, regime
    from .runs import table_as_csv, write_atomically
    from .settings import choose

    names = [choose("--only", only, REGIMES)] if only else list(REGIMES if every else THE_FIVE)
    experiments = {name: regime(name, rounds=rounds, seed=seed, base=preset) for name in names}
    if out is not None:
        check_writable(out)
    rows: list[dict[str, Any]] = []
    with Display() as display:
        display.begin(sum(e.rounds for e in experiments.values()))
        before = 0
        for name, e in experiments.items():
            for step in audited(e, data_dir=data_dir, progress=display.fetching):
                if isinstance(step, dict):
                    rows.append({"regime": name, "rounds": e.rounds, **step})
                else:
                    display.round(step, before + step.round)
            before += e.rounds
            display.say(f"{name}: trusted {rows[-1]['trusted']:.2f}, best {rows[-1]['best']:.2f}")
            if out is not None:
                write_atomically(out, table_as_csv(rows))
    display.console.print(audit_table(rows))
    if out is not None:
        display.say(f"written: {out}")


@cli.group()
def data() -> None:
    """Datasets: what there is, fetching it, who holds what."""


@data.command("list")
@click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache.")
def data_list(data_dir: str | None) -> None:
    """The datasets, and whether they are here."""
    from .data.datasets import DATASETS, cache_folder

    cache = cache_folder(data_dir)
    for name, dataset in DATASETS.items():
        here = "part of the package" if not dataset.files else "not fetched"
        if dataset.files and not dataset.missing(cache / dataset.folder):
            here = f"in {cache / dataset.folder}"
        click.echo(f"{name:<14} {dataset.title}\n{'':<14} {here}")


@data.command("fetch")
@click.argument("name")
@click.option("--data-dir", metavar="DIR", help="Where to keep it. Default: $FEDLGA_DATA, or your cache.")
def data_fetch(name: str, data_dir: str | None) -> None:
    """Fetch a dataset and check every byte of it."""
    from .data.datasets import DATASETS, cache_folder, fetch
    from .display import Display
    from .settings import choose

    cache = cache_folder(data_dir)
    dataset = DATASETS[choose("dataset", name, DATASETS)]
    with Display() as display:
        folder = fetch(name, cache, display.fetching) if dataset.files else None
        for file in dataset.files:
            dataset.checked((folder or cache) / file)
    click.echo(f"{name}: {folder or 'part of the package'}, complete and as published")


@data.command("show")
@experiment_options
@click.option("--seed", type=int, metavar="S", help="Of the partition.")
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
    from .data.partition import counts
    from .data.picture import as_text, draw
    from .display import Display
    from .simulation import load_data, make_parts

    chosen = start_from(experiment, preset).changed(wanted(flags, sets))
    if out is not None and out.suffix not in (".png", ".svg", ".pdf"):
        raise BadInput(f"--out: got {str(out)!r}; it takes a file that ends in .png, .svg or .pdf")
    with Display() as display:
        held = load_data(chosen, data_dir, display.fetching)
    table = counts(make_parts(chosen, held), held.train_labels.numpy(), held.classes)
    title = f"{chosen.dataset}, {chosen.devices} devices, partition {chosen.partition}, seed {chosen.seed}"
    click.echo(title)
    click.echo(as_text(table))
    if out is not None:
        draw(table, title, out)
        click.echo(f"drawn: {out}")


@cli.command()
@experiment_options
@click.option("--seed", type=int, metavar="S", help="Of the speeds.")
def deadline(
    experiment: Path | None, preset: str | None, sets: tuple[str, ...], data_dir: str | None, **flags: Any
) -> None:
    """Suggest a deadline for a fleet with speeds: what each choice costs, and how many finish by it."""
    import numpy as np

    from .display import Display
    from .fleet import SpeedFleet, suggested_deadline
    from .simulation import load_data, make_fleet, make_parts

    changes = {"fleet": "speeds", "deadline": 1.0, **wanted(flags, sets)}
    chosen = start_from(experiment, preset).changed(changes)
    with Display() as display:
        held = load_data(chosen, data_dir, display.fetching)
    fleet = make_fleet(chosen, held, make_parts(chosen, held))
    if not isinstance(fleet, SpeedFleet):
        raise BadInput(f"fleet: got {chosen.fleet!r}; a deadline is suggested for fleet 'speeds'")
    needs = np.array([work / speed for work, speed in zip(fleet.work, fleet.speeds, strict=True)])
    click.echo(f"{len(needs)} devices need {needs.min():.3g} to {needs.max():.3g} s for all their work")
    click.echo("deadline s   finish   the others get done")
    for share in (0.25, 0.5, 0.75, 0.9, 1.0):
        limit = float(np.quantile(needs, share))
        late = needs[needs > limit]
        done = f"{float(np.mean(limit / late)):.0%} of their work" if len(late) else "-"
        click.echo(f"{limit:>10.3g}   {float(np.mean(needs <= limit)):>6.0%}   {done}")
    click.echo(f"suggested: --set deadline={suggested_deadline(needs.tolist()):.3g} with --stragglers complete")


@cli.command()
def presets() -> None:
    """The presets, and how they differ from `paper`."""
    from .experiment import PRESET_MEANINGS, PRESETS

    for name, values in PRESETS.items():
        click.echo(f"{name:<14} {PRESET_MEANINGS[name]}")
        for key, value in values.items():
            click.echo(f"{'':<14}   {key} = {value}")


@cli.command()
def fields() -> None:
    """Every field of an experiment, for --set and TOML files: default and meaning."""
    import dataclasses

    from .experiment import Experiment
    from .methods import METHODS, method_class
    from .stragglers import POLICIES

    owners: dict[str, Any] = {"": Experiment, **{m: method_class(m) for m in METHODS}, **POLICIES}
    for owner, cls in owners.items():
        for field in dataclasses.fields(cls):
            if "meaning" in field.metadata:
                name = f"{owner}.{field.name}" if owner else field.name
                default = "unset" if field.default is None else field.default
                click.echo(f"{name:<20} {default!s:<20} {field.metadata['meaning']}")


def start_from(file: Path | None, preset_name: str | None) -> Experiment:
    """The experiment of a TOML file or a preset."""
    from .experiment import Experiment, preset

    if file is not None and preset_name is not None:
        raise BadInput(f"--preset: got {preset_name!r} with {str(file)!r}; it takes one of the two")
    return Experiment.load(file) if file is not None else preset(preset_name or "paper")


def wanted(flags: dict[str, Any], sets: tuple[str, ...]) -> dict[str, Any]:
    """What the options change: the named ones, then --set in its order."""
    from .experiment import parsed

    return {name: value for name, value in flags.items() if value is not None} | dict(parsed(text) for text in sets)


def new_folder(parent: str, name: str) -> Path:
    """A folder name that is not taken."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}".replace(":", ".")
    found, count = Path(parent) / stem, 1
    while found.exists():
        count += 1
        found = Path(parent) / f"{stem}-{count}"
    return found


def check_writable(file: Path) -> None:
    """That a file can be written at the end: hours may lie between."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(file.parent)!r} ({error.strerror})") from error
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadInput(f"--out: cannot write to {str(file)!r} (Permission denied)")


def stopped_at_once(folder: Path, command: str, superlink: str | None = None) -> int:
    """What to say when a run was broken off in the middle of a round."""
    if any((folder / name).exists() for name in ("experiment.toml", "comparison.toml")):
        where = f" --superlink {superlink}" if superlink else ""
        click.echo(f"stopped at once; to go on from the last checkpoint: fedlga {command} --resume {folder}{where}")
    else:
        click.echo("stopped before the first round; nothing was written")
    return 1


class Interrupts:
    """Ctrl-C (or a polite kill, or a closed terminal) lets the round it falls into finish, so that nothing is lost.

    A second one does not wait, nor does one before the first round is done, when there is nothing to lose.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._asked = self._running = False

    def between_rounds(self) -> bool:
        """Call after each round: whether to stop here."""
        self._running = True
        return self._asked

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
        self._before = {number: signal.signal(number, self._ask) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        at_once = self._asked or not self._running
        self._asked = True  # also now: where Python drops exceptions, in a finaliser, the next round still sees it
        if at_once:
            raise KeyboardInterrupt
        self._say("stopping after this round; Ctrl-C again stops at once, at the last checkpoint")


cli.add_command(fleet)
cli.add_command(paper)
cli.add_command(report)

if __name__ == "__main__":
    main()
