"""fedlga completion: Tab in a shell completes commands, options and their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
SHELLS = ("bash", "zsh", "fish")
BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' line kind value
    COMPREPLY=()
    for line in $(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1"); do
        IFS=',' read -r kind value <<< "$line"
        case $kind in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            part) COMPREPLY+=("$value"); compopt -o nospace ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that makes Tab complete commands, options and values in SHELL."""
    from fedlga.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "fedlga", "_FEDLGA_COMPLETE").source())


class OwnBashComplete(BashComplete):
    """Bash cuts words at '=' and ':'; so the line is taken as it stands, and what comes before them is cut off."""

    source_template = BASH

    @staticmethod
    def _check_version() -> None:
        """All that is used is in bash since version 4."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the one to complete, and the part of it that is there."""
        line = os.environ.get("COMP_LINE", "")
        words = split_arg_string(line)
        self._begun = "" if line.endswith(" ") or len(words) < 2 else words.pop()  # noqa: PLR2004
        return words[1:], self._begun

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion as the script reads it."""
        cut = max(self._begun.rfind(sign) for sign in "=:") + 1
        kind = "part" if item.type == "plain" and item.value.endswith("=") else item.type
        return f"{kind},{item.value[cut:]}"


add_completion_class(OwnBashComplete, "bash")


def complete_names(*kinds: str, many: bool = False) -> Completer:
    """Return what completes names of these kinds; with `many`, lists of them with commas."""

    def list_all() -> list[str]:
        from fedlga.core.registry import names_of

        return [name for kind in kinds for name in names_of(kind)]

    return complete_words(list_all, many=many)


def complete_words(list_all: Callable[[], Iterable[str]], *, many: bool = False) -> Completer:
    """Return what completes some words; with `many`, lists of them with commas."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",") if many else ("", "", incomplete)
        there = before.split(",")
        return [
            CompletionItem(f"{before}{comma}{word}")
            for word in list_all()
            if word.startswith(last) and word not in there
        ]

    return complete


def complete_setting(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete KEY=VALUE: the fields, and the choices of those that have some."""
    from fedlga.experiments.config import experiment_fields

    key, equals, begun = incomplete.partition("=")
    if not equals:
        return [CompletionItem(f"{name}=") for name in _list_settings() if name.startswith(key)]
    choices = list_choices().get(key, [])
    kinds = {f.name: f.type for f in experiment_fields()}
    if not choices and str(kinds.get(key)) == "bool":
        choices = ["true", "false"]
    return [CompletionItem(f"{key}={choice}") for choice in choices if choice.startswith(begun)]


def list_choices() -> dict[str, list[str]]:
    """Return the values that fields with a few values take, by the field's name."""
    from fedlga.core.registry import SEAMS
    from fedlga.experiments.config import experiment_fields

    choices = {f.name: list(f.metadata["choices"]) for f in experiment_fields() if f.metadata["choices"]}
    return choices | {seam.field: list(seam.names) for seam in SEAMS.values() if seam.in_experiment}


def _list_settings() -> list[str]:
    from fedlga.core.registry import find, list_owners
    from fedlga.core.settings import settings_of
    from fedlga.experiments.config import experiment_fields

    owners: list[Any] = [find(kind, name) for kind, name in list_owners()]
    names = [f.name for f in experiment_fields()] + [f.name for owner in owners for f in settings_of(owner)]
    return list(dict.fromkeys(names))


def list_presets() -> list[str]:
    """Return the names of the presets."""
    from fedlga.experiments.presets import PRESETS

    return list(PRESETS)
