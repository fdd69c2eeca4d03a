"""Settings: what is converted, what is refused, and how the refusal reads."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from fedlga.core.settings import (
    BadInput,
    check_settings,
    choose,
    setting,
    setting_values,
    settings_of,
    suggest,
)


@dataclass(frozen=True)
class Example:
    steps: int = setting(1, "a whole number", least=1)
    rate: float = setting(0.5, "a number", above=0, below=1)
    fast: bool = setting(True, "a switch")
    kind: str = setting("mean", "a choice", choices=("mean", "median"))
    scale: str | float = setting("auto", "a word or a number", above=0)
    speeds: tuple[float, ...] = setting((), "a list", above=0)
    limit: float | None = setting(None, "a number, or unset", least=0, most=1)
    internal: int = 7  # not a setting


def test_only_what_was_declared_is_a_setting():
    names = ["steps", "rate", "fast", "kind", "scale", "speeds", "limit"]
    assert [f.name for f in settings_of(Example)] == names
    assert list(setting_values(Example())) == names
    assert settings_of(int) == []


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("steps", 3.0, 3),
        ("rate", 0.25, 0.25),
        ("fast", False, False),
        ("kind", "median", "median"),
        ("scale", "any word", "any word"),
        ("scale", 2, 2.0),
        ("speeds", [1, 2.5], (1.0, 2.5)),
        ("speeds", "1, 2.5", (1.0, 2.5)),
        ("speeds", "1 2.5", (1.0, 2.5)),
        ("speeds", 3, (3.0,)),
        ("limit", None, None),
        ("limit", 1, 1.0),
    ],
)
def test_values_are_converted_to_their_type(name, value, checked):
    (result,) = check_settings("", Example, {name: value}).values()
    assert result == checked
    assert type(result) is type(checked)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("steps", 0, "example.steps: got 0; it takes a whole number of at least 1"),
        ("steps", 1.5, "example.steps: got 1.5; it takes a whole number of at least 1"),
        ("steps", True, "example.steps: got True; it takes a whole number of at least 1"),
        ("steps", "3", "example.steps: got '3'; it takes a whole number of at least 1"),
        ("rate", 1.0, "example.rate: got 1.0; it takes a number above 0 and below 1"),
        ("rate", math.nan, "example.rate: got nan; it takes a number above 0 and below 1"),
        ("fast", 1, "example.fast: got 1; it takes true or false"),
        ("kind", "meen", "example.kind: got 'meen'; it takes one of mean, median (did you mean 'mean'?)"),
        ("kind", "zzz", "example.kind: got 'zzz'; it takes one of mean, median"),
        ("scale", 0.0, "example.scale: got 0.0; it takes a number above 0 or a text"),
        ("speeds", [1.0, 0.0], "example.speeds: got (1.0, 0.0); it takes a list with each a number above 0"),
        ("speeds", "1, x", "example.speeds: got '1, x'; it takes a list with each a number above 0"),
        ("speeds", "", "example.speeds: got ''; it takes a list with each a number above 0"),
        ("speeds", True, "example.speeds: got True; it takes a list with each a number above 0"),
        ("limit", math.inf, "example.limit: got inf; it takes a number from 0 to 1"),
        ("internal", 3, "example.internal: there is no such field; there is: fast, kind, limit"),
        ("step", 3, "example.step: there is no such field; did you mean 'steps'?"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(name, value, said):
    with pytest.raises(BadInput) as caught:
        check_settings("example", Example, {name: value})
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_similar_name_is_suggested():
    assert suggest("fedavrg", ["fedprox", "fedavg"]) == "did you mean 'fedavg'?"
    assert suggest("zzz", ["b", "a"]) == "there is: a, b"
    assert choose("method", "fedavg", ["fedavg"]) == "fedavg"
    with pytest.raises(BadInput, match="method: there is no 'zzz'; there is: fedavg"):
        choose("method", "zzz", ["fedavg"])
