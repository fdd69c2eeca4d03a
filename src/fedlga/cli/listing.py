"""fedlga list, presets, fields: what there is to choose."""

from __future__ import annotations

import dataclasses
import inspect
import shutil
import sys
from typing import Any, cast

import click

from fedlga.cli.completion import complete_words, list_presets
from fedlga.core.settings import choose

PLURALS = {"policy": "policies"}  # the others take an s


def find_plurals() -> dict[str, str]:
    """Return every kind by its plural."""
    from fedlga.core.registry import SEAMS

    return {PLURALS.get(name, f"{name}s"): name for name in SEAMS}


@click.command("list")
@click.argument("kind", required=False, shell_complete=complete_words(find_plurals))
def list_names(kind: str | None) -> None:
    """List what can be chosen: KIND is methods, policies, fleets, ...; without it, the kinds."""
    from fedlga.core.registry import SEAMS, find
    from fedlga.core.settings import settings_of

    if kind is None:
        for plural, name in find_plurals().items():
            seam = SEAMS[name]
            echo_wrapped(f"{plural:<14} {seam.meaning}: {', '.join(seam.names).replace('-', HYPHEN)}", indent=15)
        echo_wrapped(
            "Your own: package.module:Class in place of a name, FILE.py for a task; fedlga check KIND NAME tries it."
        )
        return
    name = check_kind(kind)
    seam = SEAMS[name]
    click.echo(f"{seam.field}: {seam.meaning}")
    for choice in seam.names:
        plugin = find(name, choice)
        echo_wrapped(f"  {choice:<14} {read_first_line(plugin)}", indent=17)
        for field in settings_of(plugin):
            text = f"{field.name} = {format_default(field.default)}: {field.metadata['meaning']}"
            echo_wrapped(f"{'':<19}{text}", indent=21)


@click.command()
@click.argument("name", required=False, shell_complete=complete_words(list_presets))
def presets(name: str | None) -> None:
    """Show the presets, or the one called NAME, and how they differ from `paper`."""
    from fedlga.experiments.presets import PRESET_MEANINGS, PRESETS

    shown = PRESETS if name is None else {name: PRESETS[choose("preset", name, PRESETS)]}
    for name, values in shown.items():  # noqa: PLR1704
        click.echo(f"{name:<14} {PRESET_MEANINGS[name]}")
        for key, value in values.items():
            click.echo(f"{'':<14}   {key} = {format_default(value)}")


@click.command()
@click.argument("word", required=False)
def fields(word: str | None) -> None:
    """Show every field of an experiment, for --set and TOML files: default, meaning, and what it takes.

    With WORD, only those whose name or meaning has it.
    """
    from fedlga.core.registry import find, list_owners
    from fedlga.core.settings import BadInput, settings_of, suggest
    from fedlga.experiments.config import Experiment

    owners: dict[str, Any] = {"": Experiment}
    owners |= {name: find(kind, name) for kind, name in list_owners()}
    lines = {
        f"{owner}.{field.name}" if owner else field.name: (field, describe_field(cls, field))
        for owner, cls in owners.items()
        for field in settings_of(cls)
    }
    shown = {name for name, (_, text) in lines.items() if word is None or word in name or word in text}
    if word is not None and not shown:
        raise BadInput(f"WORD: no field has {word!r}; {suggest(word, [name.rpartition('.')[2] for name in lines])}")
    for name, (field, text) in lines.items():
        if name in shown:
            echo_field(name, format_default(field.default), text)


def describe_field(cls: type, field: dataclasses.Field[Any]) -> str:
    """Return what a field means, and what it takes."""
    from fedlga.core.registry import SEAMS
    from fedlga.core.settings import describe_values
    from fedlga.experiments.config import Experiment

    seam = next((seam for seam in SEAMS.values() if cls is Experiment and seam.field == field.name), None)
    takes = describe_values(cls, field) if seam is None else f"one of {', '.join(seam.names)}, or your own"
    return f"{field.metadata['meaning']} ({takes})"


def echo_field(name: str, default: str, text: str) -> None:
    """Print a field: on a terminal wrapped to its width, else in a line, for grep."""
    line = f"{name:<24} {default:<20} {text}"
    if not sys.stdout.isatty() or len(line) <= terminal_width():
        click.echo(line)
    else:
        click.echo(f"{name:<24} {default}")
        echo_wrapped(f"    {text}", indent=4)


HYPHEN = "\N{NON-BREAKING HYPHEN}"  # names are not broken at theirs


def echo_wrapped(text: str, indent: int = 0) -> None:
    """Print a line, wrapped to the terminal's width."""
    width = terminal_width()
    start = text[: len(text) - len(text.lstrip())]
    wrapped = click.wrap_text(text.lstrip(), width, initial_indent=start, subsequent_indent=" " * indent)
    click.echo(wrapped.replace(HYPHEN, "-"))


def terminal_width() -> int:
    """Return the width that lines are wrapped to."""
    return min(shutil.get_terminal_size().columns, 100)


def read_first_line(plugin: Any) -> str:
    """Return the first line of a docstring."""
    return (getattr(plugin, "about", None) or inspect.getdoc(plugin) or "").partition("\n")[0]


def format_default(value: Any) -> str:
    """Return a value as --set and TOML files take it; 'unset' and 'empty' for those that say nothing."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        value = list(cast("tuple[Any, ...]", value))
    return str(value) if str(value) not in ("", "[]") else "empty"


def check_kind(kind: str) -> str:
    """Return the kind that a singular or plural names; BadInput if there is none."""
    plurals = find_plurals()
    return kind if kind in plurals.values() else plurals[choose("KIND", kind, plurals)]
