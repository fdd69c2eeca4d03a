"""The command itself: help, version, and the ways to start it."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedlga.cli.guidance import read_examples
from fedlga.cli.main import cli


def list_commands(command=cli, words=()):
    """Return every command and every group, as the words that call it."""
    below = getattr(command, "commands", {})
    return [words, *(found for name, inner in below.items() for found in list_commands(inner, (*words, name)))]


@pytest.mark.parametrize("words", list_commands(), ids=" ".join)
def test_help_for_every_command(fedlga, words):
    code, out, _ = fedlga(*words, "--help")
    assert code == 0
    assert "Usage: fedlga" in out


def test_all_commands_are_there():
    assert set(cli.commands) == {
        *("audit", "check", "compare", "completion", "data", "deadline", "doctor", "fields", "fleet"),
        *("list", "paper", "presets", "report", "run", "theory", "tune", "watch"),
    }


def test_version(fedlga):
    assert fedlga("--version")[1].startswith("fedlga, version 0.")


def test_without_a_command_it_says_what_to_do_next(fedlga):
    code, out, err = fedlga()
    assert (code, err) == (0, "")
    assert "fedlga run --preset digits" in out
    assert max(map(len, out.splitlines())) <= 80
    Path("mine.py").write_text("def model(): ...\n\n\ndef data(): ...\n")
    assert "`fedlga run mine.py` trains it" in fedlga()[1]
    Path("runs/one").mkdir(parents=True)
    assert "`fedlga report runs/one` makes a page of it" in fedlga()[1]


@pytest.mark.parametrize(
    "words", [words for words in list_commands() if words and words not in (("data",), ("fleet",))]
)
def test_every_help_has_examples_that_can_be_called(words):
    command = cli
    for word in words:
        command = command.commands[word]
    examples = read_examples(command)
    assert len(examples) >= 2
    for example in examples:
        line = example.partition(" >")[0]  # a shell may write it to a file
        name, *arguments = shlex.split(line)
        assert (name, *arguments[: len(words)]) == ("fedlga", *words)
        command.make_context(words[-1], arguments[len(words) :])  # raises, if an option is none


@pytest.mark.parametrize("module", ["fedlga", "fedlga.cli"])
def test_both_modules_can_be_started(tmp_path, module):
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("fedlga, version 0.")
    assert done.stderr == ""


def test_the_installed_command_starts_the_same(tmp_path):
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, name = project["scripts"]["fedlga"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))
    command = [str(Path(sys.executable).with_name("fedlga")), "--version"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == "", "after a change of pyproject.toml: pip install -e ."
    assert done.stdout.startswith("fedlga, version 0.")


def test_a_command_that_is_none_costs_one_line(fedlga):
    code, out, err = fedlga("rnu")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "rnu" in err
