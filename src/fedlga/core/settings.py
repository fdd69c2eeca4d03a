"""Settings: dataclass fields that carry their meaning and their limits, and one-line errors for wrong values."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, cast

from fedlga.core.words import ANSWERS, NAMES, simplify

NEAR = 0.7  # how alike two names are, from 0 to 1, of which one may be a slip of the other
MOST_LISTED = 20  # names in a message


class BadInput(ValueError):
    """A call that cannot be carried out. The message is one line: the field, what it got, what it takes."""

    def __init__(self, message: object = "") -> None:
        """Line breaks in the message, which a name or a value of the user's may have, become spaces."""
        super().__init__(" ".join(str(message).split("\n")).replace("\r", " "))


class Stopped(RuntimeError):
    """A run that could not go on, although the call was right. The message is one line; what was done is kept."""


def setting(
    default: Any,
    meaning: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    choices: Iterable[str] = (),
) -> Any:
    """Return a dataclass field with its one-line meaning and its limits beside the default."""
    limits = {"least": least, "above": above, "most": most, "below": below, "choices": tuple(choices)}
    return dataclasses.field(default=default, metadata={"meaning": meaning, **limits})


def find_similar(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant; None if none is near: a distant guess is worse than none."""
    names = sorted(known)
    same = NAMES.get(simplify(name))
    if same in names:
        return same
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=NEAR)), None)


def suggest(name: str, known: Iterable[str]) -> str:
    """Return what helps after a name that is not known: an answer, 'did you mean X?', or all names if they are few."""
    names = sorted(known)
    if simplify(name) in ANSWERS:
        return ANSWERS[simplify(name)]
    if (similar := find_similar(name, names)) is not None:
        return f"did you mean {similar!r}?"
    return f"there is: {', '.join(names)}" if len(names) <= MOST_LISTED else "`fedlga fields` lists what there is"


def choose(what: str, name: str, known: Iterable[str]) -> str:
    """Return `name` if it is known; otherwise raise BadInput with the name that was probably meant."""
    names = list(known)
    if name not in names:
        raise BadInput(f"{what}: there is no {name!r}; {suggest(name, names)}")
    return name


def settings_of(cls: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass, or of an instance, that were declared with `setting`, in order."""
    return [f for f in dataclasses.fields(cls) if "meaning" in f.metadata] if dataclasses.is_dataclass(cls) else []


def setting_values(instance: Any) -> dict[str, Any]:
    """Return the settings of a dataclass instance by name."""
    return {f.name: getattr(instance, f.name) for f in settings_of(instance)}


def check_settings(owner: str, cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values`, checked against the settings of dataclass `cls`: known names, right types, within the limits."""
    fields = {f.name: f for f in settings_of(cls)}
    hints = _type_hints(cls)
    prefix = f"{owner}." if owner else ""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise BadInput(f"{prefix}{name}: there is no such field; {suggest(name, fields)}")
        result[name] = _check(f"{prefix}{name}", value, hints[name], fields[name].metadata)
    return result


@functools.cache
def _type_hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields; evaluating them takes most of the time of a check."""
    return typing.get_type_hints(cls)


def _check(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    takes = _takes(kind, limits)
    value = _convert(value, kind, fail=BadInput(f"{name}: got {value!r}; it takes {takes}"))
    values = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
    numbers = [v for v in values if isinstance(v, int | float)]
    within = all(
        math.isfinite(v)
        and (limits["least"] is None or v >= limits["least"])
        and (limits["above"] is None or v > limits["above"])
        and (limits["most"] is None or v <= limits["most"])
        and (limits["below"] is None or v < limits["below"])
        for v in numbers
    )
    choices = limits["choices"]
    if not within or (choices and isinstance(value, str) and value not in choices):
        similar = find_similar(value, choices) if isinstance(value, str) else None
        hint = "" if similar is None else f" (did you mean {similar!r}?)"
        raise BadInput(f"{name}: got {value!r}; it takes {takes}{hint}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _convert(value: Any, kind: Any, fail: BadInput) -> Any:
    """Convert `value` to `kind`.

    A whole float can be an int, an int a float, and a list may be written as text: '1, 2, 3' or '1 2 3'. Nothing else
    is converted.
    """
    if isinstance(kind, types.UnionType):
        for option in typing.get_args(kind):
            try:
                return _convert(value, option, fail)
            except BadInput:
                continue
        raise fail
    if kind is type(None):
        if value is None:
            return None
    elif typing.get_origin(kind) is tuple:
        if isinstance(value, str):
            value = [_parse_number(word, fail) for word in value.replace(",", " ").split()] or None
        elif isinstance(value, int | float) and not isinstance(value, bool):
            value = [value]
        if isinstance(value, list | tuple):
            return tuple(_convert(v, typing.get_args(kind)[0], fail) for v in value)  # pyright: ignore[reportUnknownVariableType]
    elif isinstance(value, bool) or kind is bool:
        if isinstance(value, bool) and kind is bool:
            return value
    elif kind is int and isinstance(value, int | float) and _as_float(value, fail).is_integer():
        return int(value)
    elif kind is float and isinstance(value, int | float):
        return _as_float(value, fail)
    elif kind is str and isinstance(value, str):
        return value
    raise fail


def _parse_number(word: str, fail: BadInput) -> float:
    try:
        return float(word)
    except ValueError:
        raise fail from None


def _as_float(value: float, fail: BadInput) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise fail from None


def read_toml(text: str, what: str) -> dict[str, Any]:
    """Return what a TOML text says; BadInput, which begins with `what`, if it cannot be read."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BadInput(f"{what}: not valid TOML (too deeply nested)") from None
    except ValueError as error:  # also of whole numbers with thousands of digits
        raise BadInput(f"{what}: not valid TOML ({error})") from error


def describe_values(cls: type, field: dataclasses.Field[Any]) -> str:
    """Return what a setting takes, in words: 'a number from 0 to 1', 'one of a, b, c'."""
    return _takes(_type_hints(cls)[field.name], field.metadata)


def _takes(kind: Any, limits: Mapping[str, Any]) -> str:
    """Return what a field takes, in words: 'a number from 0 to 1', 'one of a, b, c'."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    parts = [words[o] for o in options if o in words]
    parts += [f"a list with each {words[typing.get_args(o)[0]]}" for o in options if typing.get_origin(o) is tuple]
    if parts and limits["least"] is not None and limits["most"] is not None:
        parts[-1] += f" from {limits['least']:g} to {limits['most']:g}"
    elif parts:
        signs = {"least": "of at least", "above": "above", "most": "of at most", "below": "below"}
        bounds = [f"{sign} {limits[key]:g}" for key, sign in signs.items() if limits[key] is not None]
        parts[-1] += (" " + " and ".join(bounds)) if bounds else ""
    if str in options:
        parts.append(f"one of {', '.join(limits['choices'])}" if limits["choices"] else "a text")
    return " or ".join(parts)
