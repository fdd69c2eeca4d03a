"""fedlga list, presets, fields: what there is to choose."""

from __future__ import annotations

import inspect
import shutil
from typing import Any

import click

from fedlga.core.settings import choose

PLURALS = {"policy": "policies"}  # the others take an s


@click.command("list")
@click.argument("kind", required=False)
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
def presets() -> None:
    """Show the presets, and how they differ from `paper`."""
    from fedlga.experiments.presets import PRESET_MEANINGS, PRESETS

    for name, values in PRESETS.items():
        click.echo(f"{name:<14} {PRESET_MEANINGS[name]}")
        for key, value in values.items():
            click.echo(f"{'':<14}   {key} = {value}")


@click.command()
def fields() -> None:
    """Show every field of an experiment, for --set and TOML files: default and meaning."""
    from fedlga.core.registry import SEAMS, find
    from fedlga.core.settings import settings_of
    from fedlga.experiments.config import Experiment

    owners: dict[str, Any] = {"": Experiment}
    owners |= {name: find(kind, name) for kind, seam in SEAMS.items() if seam.base for name in seam.names}
    for owner, cls in owners.items():
        for field in settings_of(cls):
            name = f"{owner}.{field.name}" if owner else field.name
            click.echo(f"{name:<24} {format_default(field.default):<20} {field.metadata['meaning']}")


HYPHEN = "\N{NON-BREAKING HYPHEN}"  # names are not broken at theirs


def echo_wrapped(text: str, indent: int = 0) -> None:
    """Print a line, wrapped to the terminal's width."""
    width = min(shutil.get_terminal_size().columns, 100)
    start = text[: len(text) - len(text.lstrip())]
    wrapped = click.wrap_text(text.lstrip(), width, initial_indent=start, subsequent_indent=" " * indent)
    click.echo(wrapped.replace(HYPHEN, "-"))


def read_first_line(plugin: Any) -> str:
    """Return the first line of a docstring."""
    return (getattr(plugin, "about", None) or inspect.getdoc(plugin) or "").partition("\n")[0]


def format_default(value: Any) -> str:
    """Return a default as text."""
    if value is None:
        return "unset"
    return "empty" if value == () else str(value)


def check_kind(kind: str) -> str:
    """Return the kind that a singular or plural names; BadInput if there is none."""
    plurals = find_plurals()
    return kind if kind in plurals.values() else plurals[choose("KIND", kind, plurals)]


def find_plurals() -> dict[str, str]:
    """Return every kind by its plural."""
    from fedlga.core.registry import SEAMS

    return {PLURALS.get(name, f"{name}s"): name for name in SEAMS}
