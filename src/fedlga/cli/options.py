"""What commands share: the options that describe an experiment, and new folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedlga.cli.completion import complete_names, complete_setting, complete_words, list_presets
from fedlga.core.files import try_writing
from fedlga.core.settings import BadInput, find_similar
from fedlga.core.words import ANSWERS, simplify

if TYPE_CHECKING:
    from fedlga.experiments.config import Experiment

Command = Callable[..., Any]


def experiment_options(command: Command) -> Command:
    """Add the options that say which experiment is meant."""
    options = [
        click.argument("experiment", required=False, type=click.Path(dir_okay=False, path_type=Path)),
        click.option(
            "--preset",
            metavar="NAME",
            help="Start from a preset: see fedlga presets. Default: paper.",
            shell_complete=complete_words(list_presets),
        ),
        click.option(
            "--dataset", metavar="D", help="See fedlga list datasets.", shell_complete=complete_names("dataset")
        ),
        click.option("--rounds", type=int, metavar="T", help="Rounds to train."),
        click.option("--target", type=float, metavar="A", help="Accuracy, or other target metric, to reach."),
        click.option(
            "--backend",
            metavar="B",
            help="serial, pool or flower.",
            shell_complete=complete_words(lambda: ("serial", "pool", "flower")),
        ),
        click.option(
            "--device",
            metavar="D",
            help="cpu, cuda, cuda:N, mps or auto: where tensors are computed.",
            shell_complete=complete_words(lambda: ("cpu", "cuda", "mps", "auto")),
        ),
        click.option("--workers", type=int, metavar="W", help="Processes of the pool; 0: one a core."),
        click.option(
            "--audit", is_flag=True, default=None, help="Measure how close completed updates come to true ones."
        ),
        click.option(
            "--record", metavar="WHAT", help="gradient: record the training loss and its squared gradient, too."
        ),
        click.option(
            "--set",
            "sets",
            multiple=True,
            metavar="KEY=VALUE",
            help="Any field: see fedlga fields.",
            shell_complete=complete_setting,
        ),
        click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache."),
    ]
    return _add(options, command)


def arm_options(verb: str, default: str, first: str = "") -> Callable[[Command], Command]:
    """Return what adds the options that say which methods and policies are meant: those to compare, or to tune."""
    options = [
        click.option(
            "--methods",
            metavar="M,M,...",
            help=f"Methods to {verb}. Default: {default}.",
            shell_complete=complete_names("method", many=True),
        ),
        click.option(
            "--stragglers",
            "policies",
            metavar="P,P,...",
            help=f"Policies to {verb}. Default: each method's own.",
            shell_complete=complete_names("policy", many=True),
        ),
        click.option(
            "--arm",
            "arm_texts",
            multiple=True,
            metavar="'METHOD [POLICY] [KEY=VALUE ...]'",
            help=f"One more arm, with settings of its own; can be repeated.{first}",
        ),
    ]
    return lambda command: _add(options, command)


def folder_options(out: str, resume: str) -> Callable[[Command], Command]:
    """Return what adds the options for the folder, and --track: what every command that runs experiments has."""
    options = [
        click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help=out),
        click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help=resume),
        click.option(
            "--track",
            "track",
            multiple=True,
            metavar="NAME",
            help="Follow it with csv, tensorboard, mlflow, wandb or your own: 'NAME [KEY=VALUE ...]'; can be repeated.",
            shell_complete=complete_names("tracker"),
        ),
    ]
    return lambda command: _add(options, command)


def _add(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def start_from(file: Path | None, preset_name: str | None) -> Experiment:
    """Return the experiment of a TOML file, of a task's Python file, or of a preset."""
    from fedlga.experiments.config import Experiment
    from fedlga.experiments.presets import preset

    if file is not None and preset_name is not None:
        if not file.exists() and (hint := suggest_option(str(file), default="")):  # a list without commas
            raise BadInput(f"experiment: there is no file {str(file)!r}{hint}")
        raise BadInput(f"--preset: got {preset_name!r} with {str(file)!r}; it takes one of the two")
    if file is not None and file.suffix == ".py":
        from fedlga.learning.task import load_task

        task = load_task(str(file))
        try:
            return Experiment(task=task.source).changed(task.experiment)
        except BadInput as error:
            raise BadInput(f"{file.name}: experiment: {error}") from error
    if file is not None and not file.exists():
        raise BadInput(f"experiment: there is no file {str(file)!r}{suggest_option(str(file))}")
    return Experiment.load(file) if file is not None else preset(preset_name or "paper")


def suggest_option(word: str, default: str = "; it takes EXPERIMENT.toml or FILE.py") -> str:
    """Return which option a word is for that stands where the experiment's file should; `default` if none is known."""
    from fedlga.core.registry import names_of
    from fedlga.experiments.presets import PRESETS

    options = {"--preset": list(PRESETS), "--dataset": names_of("dataset")}
    for option, names in options.items():
        if word in names:
            return f"; did you mean {option} {word}?"
    if word in names_of("method"):
        return f"; {word!r} is a method: --method {word}, or a list: --methods A,B"
    if word in names_of("policy"):
        return f"; {word!r} is a policy: --stragglers {word}, lists with commas"
    if simplify(word) in ANSWERS:
        return f"; {word!r}: {ANSWERS[simplify(word)]}"
    similar = find_similar(word, PRESETS)
    return default if similar is None else f"; did you mean --preset {similar}?"


def collect_changes(flags: dict[str, Any], sets: tuple[str, ...]) -> dict[str, Any]:
    """Return what the options change: the named ones, then --set in its order. Each field once."""
    from fedlga.experiments.parsing import parse_setting

    named = {name: value for name, value in flags.items() if value is not None}
    changes: dict[str, Any] = {}
    for name, value in map(parse_setting, sets):
        if name in changes or name in named:
            other = f"also with --{name.replace('_', '-')}" if name in named else "twice"
            raise BadInput(f"--set: got {name} {other}; it takes each field once")
        changes[name] = value
    return named | changes


def split_list(text: str | None) -> list[str]:
    """Return the words of a list, with commas or spaces between them."""
    return [word for part in text.split(",") for word in part.split() or [""]] if text else []


def check_suffix(out: Path, *suffixes: str) -> None:
    """Raise BadInput if a file is to be written in a format that is not there."""
    if out.suffix.lower() not in ("", *suffixes):
        raise BadInput(f"--out: got {str(out)!r}; it takes a file that ends in {' or '.join(suffixes)}")


def check_writable(file: Path) -> None:
    """Raise BadInput if a file cannot be written: better now than hours later."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try_writing(file.parent)
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(file.parent)!r} ({error.strerror})") from error
    if file.is_dir():
        raise BadInput(f"--out: {str(file)!r} is a folder; it takes a file")
    if file.exists() and not os.access(file, os.W_OK):
        raise BadInput(f"--out: cannot write to {str(file)!r} (Permission denied)")


def count(number: int, what: str) -> str:
    """Return a number of things: '1 arm', '2 arms'."""
    return f"{number} {what}{'' if number == 1 else 's'}"
