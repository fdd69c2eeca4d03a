"""A hook of MkDocs: reference pages that are made from the code, so that they cannot go stale.

A page says where: a line `<!-- made from the code: record-fields -->` becomes what the function of this name returns.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import click

PLACE = re.compile(r"^<!-- made from the code: (?P<name>[a-z-]+) -->$", re.MULTILINE)
MAKERS: dict[str, Callable[[], str]] = {}


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put in what is made from the code."""
    return PLACE.sub(lambda match: MAKERS[match["name"]](), markdown)


def maker(function: Callable[[], str]) -> Callable[[], str]:
    """Register a function that makes a part of a page; its name, with hyphens, stands in the page."""
    MAKERS[function.__name__.replace("_", "-")] = function
    return function


def format_table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


# Fields of records and summaries


def read_comments(cls: type) -> dict[str, str]:
    """Return the comment behind each field of a dataclass, in the class's source."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    comments: dict[str, str] = {}
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            end = lines[(node.end_lineno or node.lineno) - 1][node.end_col_offset or 0 :]
            comments[node.target.id] = end.strip().removeprefix("#").strip()
    return comments


def describe_fields(cls: Any) -> str:
    """Return a table of a dataclass's fields, with their types and comments."""
    comments = read_comments(cls)
    rows = [
        (f"`{f.name}`", f"`{str(f.type).replace(' | ', ' or ')}`", comments[f.name]) for f in dataclasses.fields(cls)
    ]
    return format_table(("field", "type", "meaning"), rows)


@maker
def record_fields() -> str:
    """Return the fields of a line of rounds.jsonl."""
    from fedlga.core.types import Record

    return describe_fields(Record)


@maker
def update_fields() -> str:
    """Return the fields of what a device sends."""
    from fedlga.core.types import Update

    return describe_fields(Update)


@maker
def assignment_fields() -> str:
    """Return the fields of what a device is sent."""
    from fedlga.core.types import Assignment

    return describe_fields(Assignment)


@maker
def summary_fields() -> str:
    """Return the fields of summary.json that are computed from the records, for the metric `accuracy`."""
    from fedlga.experiments.measures import list_measures

    rows = [
        (
            f"`{m.name}`",
            m.title,
            ("only with a target" if m.to_target else "only with --audit" if m.only_audited else ""),
        )
        for m in list_measures("accuracy")
    ]
    return format_table(("field", "what it is", "when"), rows)


# Settings


def describe_settings(cls: Any) -> str:
    """Return a table of the settings of a class."""
    from fedlga.cli.listing import format_default
    from fedlga.core.settings import settings_of

    rows: list[tuple[str, ...]] = []
    for field in settings_of(cls):
        choices = field.metadata["choices"]
        takes = "one of " + ", ".join(f"`{c}`" for c in choices) if choices else describe_limits(field.metadata)
        rows.append((f"`{field.name}`", f"`{format_default(field.default)}`", field.metadata["meaning"], takes))
    return format_table(("setting", "default", "meaning", "takes"), rows)


def describe_limits(limits: Any) -> str:
    """Return the limits of a number in words."""
    signs = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
    return ", ".join(f"{word} {limits[name]:g}" for name, word in signs.items() if limits[name] is not None)


@maker
def experiment_settings() -> str:
    """Return the experiment's own settings."""
    from fedlga.experiments.config import Experiment

    return describe_settings(Experiment)


@maker
def settings_of_parts() -> str:
    """Return every built-in of every kind with its settings."""
    from fedlga.cli.listing import find_plurals, read_first_line
    from fedlga.core.registry import SEAMS, find
    from fedlga.core.settings import settings_of

    parts: list[str] = []
    for plural, kind in find_plurals().items():
        seam = SEAMS[kind]
        parts.append(f"## {plural.capitalize()}\n\n`{seam.field}`: {seam.meaning}.\n")
        rows = [(f"`{name}`", read_first_line(find(kind, name))) for name in seam.names]
        parts.append(format_table(("name", "what it is"), rows))
        owners = {name: find(kind, name) for name in seam.names}
        parts += [f"Settings of `{n}`:\n\n{describe_settings(c)}" for n, c in owners.items() if settings_of(c)]
    return "\n".join(parts)


@maker
def presets() -> str:
    """Return every preset with what it changes."""
    from fedlga.experiments.presets import PRESET_MEANINGS, PRESETS

    rows = [
        (f"`{name}`", PRESET_MEANINGS[name], ", ".join(f"`{key}={value}`" for key, value in changes.items()))
        for name, changes in PRESETS.items()
    ]
    return format_table(("preset", "what it is", "beside `paper`, it changes"), rows)


# The command line


@maker
def commands() -> str:
    """Return a section for each command: what it does, its call, its options."""
    from fedlga.cli.main import cli

    return "\n".join(describe_command(command, names) for command, names in walk_commands(cli, ("fedlga",)))


def walk_commands(command: click.Command, names: tuple[str, ...]) -> Iterator[tuple[click.Command, tuple[str, ...]]]:
    """Yield a command and all below it, in the order of their names."""
    yield command, names
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from walk_commands(command.commands[name], (*names, name))


def describe_command(command: click.Command, names: tuple[str, ...]) -> str:
    """Return a section on one command."""
    context = click.Context(command, info_name=" ".join(names))
    usage = f"{' '.join(names)} {' '.join(command.collect_usage_pieces(context))}"
    parts = [
        f"{'#' * min(len(names) + 1, 3)} {' '.join(names)}\n",
        format_help(command.help or ""),
        f"```text\n{usage}\n```\n",
    ]
    options = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
    rows = [(f"`{call}`", text) for call, text in options if text and "--help" not in call]
    if rows:
        parts.append(format_table(("option", "meaning"), rows))
    if command.epilog:
        parts.append(format_help(command.epilog))
    return "\n".join(parts)


def format_help(text: str) -> str:
    """Return click's help text as Markdown: paragraphs that begin with \\b keep their lines."""
    parts = inspect.cleandoc(text).split("\n\n")
    return (
        "\n\n".join(
            f"```text\n{part.strip().removeprefix(chr(8)).strip(chr(10))}\n```" if part.startswith("\b") else part
            for part in parts
        )
        + "\n"
    )
