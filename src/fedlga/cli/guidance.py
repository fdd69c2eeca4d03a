"""What is said to a wrong call, and to one that says nothing: what was probably meant, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from fedlga.core.settings import BadInput, find_similar, suggest
from fedlga.core.words import ANSWERS, NAMES, simplify

FIRST_STEPS = """\
Federated learning for devices that are not equal.

{next_step}
  fedlga run --preset digits    train on data that comes with the package
  fedlga run mine.py            your own data and model: docs/own-data.md
  fedlga compare --preset digits --stragglers drop,keep,complete --seeds 0-2
  fedlga doctor                 what is installed here, and what is missing

fedlga --help lists all commands; fedlga COMMAND --help has examples."""


def describe_first_steps(folder: Path) -> str:
    """Return what to do next, in this folder."""
    runs = sorted((path for path in folder.glob("runs/*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    tasks = sorted(file.name for file in folder.glob("*.py") if _is_task(file))
    if runs:
        last = runs[-1].relative_to(folder)
        step = f"Your last run is {last}: `fedlga report {last}` makes a page of it. Or:"
    elif tasks:
        step = f"There is a task here: `fedlga run {tasks[0]}` trains it. Or:"
    else:
        step = "Start with one of these:"
    return FIRST_STEPS.format(next_step=step)


def _is_task(file: Path) -> bool:
    """Return whether a file looks like a task. It is read, not run."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return "\ndef model(" in f"\n{text}" and "\ndef data(" in f"\n{text}"


def refuse_empty(words: Sequence[str]) -> None:
    """Raise BadInput if an option or an argument is an empty text, as of a shell's variable that is not set."""
    for index, word in enumerate(words):
        option = word.removesuffix("=") if word.startswith("--") and word.endswith("=") else ""
        if word.strip() and not option:
            continue
        before = words[index - 1] if index else ""
        name = option or (before if before.startswith("-") else "argument")
        raise BadInput(f"{name}: got an empty text; leave it out, or give it a value")


def explain_option(error: click.NoSuchOption, words: Sequence[str]) -> str:
    """Return a line about an option that there is not: the one that was meant, or the --set that does it."""
    option = error.option_name
    text = f"there is no option {option}"
    if error.ctx is None:
        return text
    parameters = error.ctx.command.params
    options = [name for parameter in parameters for name in parameter.opts if name.startswith("--")]
    word = simplify(option.lstrip("-"))
    meant = NAMES.get(word, word)
    if f"--{meant.replace('_', '-')}" in options:
        return f"{text}; did you mean --{meant.replace('_', '-')}?"
    if "--set" in options and _is_field(meant):
        return f"{text}; any field goes with --set: --set {meant}={_find_value(option, words)}"
    if word in ANSWERS:
        return f"{text}; {ANSWERS[word]}"
    command = error.ctx.command_path
    run = error.ctx.command.commands.get("run") if isinstance(error.ctx.command, click.Group) else None
    if run is not None and (_is_field(meant) or any(option in parameter.opts for parameter in run.params)):
        return f"{text}; it is for a command, such as fedlga run: {command} run --help"
    similar = find_similar(option.lstrip("-"), [name.lstrip("-") for name in options])  # dashes are alike in all
    return f"{text}; " + (f"did you mean --{similar}?" if similar else f"{command} --help lists them")


def explain_missing(error: click.MissingParameter) -> str:
    """Return a line about an argument that is missing, with a call that has it."""
    text = " ".join(error.format_message().split()).rstrip(".")
    examples = read_examples(error.ctx.command) if error.ctx is not None else []
    return f"{text}; for example: {examples[0]}" if examples else text


def _is_field(name: str) -> bool:
    from fedlga.core.registry import built_in_owners
    from fedlga.experiments.config import experiment_fields

    return name in {f.name for f in experiment_fields()} or bool(built_in_owners(name))


def _find_value(option: str, words: Sequence[str]) -> str:
    """Return the value that an option was given, as it stands among the words of the call."""
    for index, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and index + 1 < len(words) and not words[index + 1].startswith("--"):
            return words[index + 1]
    return "VALUE"


class GuidedGroup(click.Group):
    """A group that says which command was meant, and what to do next if none was given."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a call; BadInput if there is none of that name."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise BadInput(f"there is no command {name!r}; {suggest(name, self.commands)}")
        return super().resolve_command(ctx, args)


def show_examples(command: click.Command, examples: Sequence[str]) -> None:
    """Add examples to the end of a command's --help."""
    lines = "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples)])
    command.epilog = lines


def read_examples(command: Any) -> list[str]:
    """Return the examples of a command's --help."""
    lines = (command.epilog or "").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("fedlga ")]
