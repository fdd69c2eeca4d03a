"""fedlga list, presets, fields: what there is to choose, with every setting, within 80 columns."""

from __future__ import annotations

import pytest

from fedlga.cli.listing import find_plurals, format_default
from fedlga.core.registry import SEAMS, find, list_owners
from fedlga.core.settings import settings_of
from fedlga.experiments.config import Experiment, experiment_fields
from fedlga.experiments.parsing import parse_setting
from fedlga.experiments.presets import PRESETS


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_the_kinds_are_listed(fedlga):
    code, out, err = fedlga("list")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    for plural, kind in find_plurals().items():
        assert any(line.startswith(f"{plural} ") for line in lines)
        assert all(name in out for name in SEAMS[kind].names)
    assert "package.module:Class" in out


@pytest.mark.parametrize("kind", SEAMS)
def test_every_choice_is_listed_with_its_settings(fedlga, kind):
    plural = {kind: plural for plural, kind in find_plurals().items()}[kind]
    code, out, err = fedlga("list", plural)
    assert (code, err) == (0, "")
    assert fedlga("list", kind)[1] == out, "the singular will do"
    lines = out.splitlines()
    assert lines[0] == f"{SEAMS[kind].field}: {SEAMS[kind].meaning}"
    assert max(map(len, lines)) <= 80
    words = out.split()
    for name in SEAMS[kind].names:
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"  {name} ")]
        assert lines[at].split()[1:], "a line says what it is"
        block = " ".join(words_of_block(lines, at))
        for field in settings_of(find(kind, name)):
            meaning = " ".join(field.metadata["meaning"].split())
            assert f"{field.name} = {format_default(field.default)}: {meaning}" in block
    assert "None" not in words


def words_of_block(lines, at):
    """Return the words from a choice's line to the next choice's."""
    later = [i for i in range(at + 1, len(lines)) if lines[i][2] != " "]
    return [word for line in lines[at : later[0] if later else None] for word in line.split()]


def test_a_kind_that_is_none_is_one_line(fedlga):
    code, out, err = fedlga("list", "flets")
    assert (code, out) == (2, "")
    assert err == "fedlga: KIND: there is no 'flets'; did you mean 'fleets'?\n"


def test_presets_and_fields_are_listed(fedlga):
    assert "paper-epochs" in fedlga("presets")[1]
    out = fedlga("fields")[1]
    for name in ("paper.rho", "fedprox.mu", "complete.scale", "dirichlet.partition_alpha"):
        assert name in out


def test_every_preset_is_listed(fedlga):
    names = [line.split()[0] for line in fedlga("presets")[1].splitlines() if not line.startswith(" ")]
    assert names == list(PRESETS)


def test_values_are_shown_as_they_are_taken(fedlga):
    """Each line of a preset goes with --set as it stands, and with a TOML file."""
    for name, changes in PRESETS.items():
        lines = [line.strip() for line in fedlga("presets", name)[1].splitlines()[1:]]
        shown = dict(parse_setting(line.replace(" = ", "=")) for line in lines)
        assert Experiment().changed(shown) == Experiment().changed(changes), name
    assert [format_default(value) for value in (True, (0, 1), (), "", None)] == [
        *("true", "[0, 1]", "empty", "empty", "unset")
    ]
    assert "figures = empty: " in fedlga("list", "fleets")[1]


def test_every_field_is_listed(fedlga):
    names = [line.split()[0] for line in fedlga("fields")[1].splitlines()]
    own = [f.name for f in experiment_fields()]
    assert names[: len(own)] == own
    settings = [f"{name}.{field.name}" for kind, name in list_owners() for field in settings_of(find(kind, name))]
    assert names[len(own) :] == settings
