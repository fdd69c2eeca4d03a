"""Settings: dataclass fields that carry their meaning and what they take, and one line for whoever gets them wrong."""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, cast


class BadInput(ValueError):
    """A call that cannot be carried out. The message is one line: the field, what it got, what it takes."""


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
    """A dataclass field whose one-line meaning and limits stand beside its default."""
    limits = {"least": least, "above": above, "most": most, "below": below, "choices": tuple(choices)}
    return dataclasses.field(default=default, metadata={"meaning": meaning, **limits})


def nearest(name: str, known: Iterable[str]) -> str:
    """' (did you mean X?)', or what there is when nothing is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there is: {', '.join(names)}"


def choose(what: str, name: str, known: Iterable[str]) -> str:
    """Return `name` if it is known; otherwise say which name was probably meant."""
    names = list(known)
    if name not in names:
        raise BadInput(f"{what}: there is no {name!r}; {nearest(name, names)}")
    return name


def checked(owner: str, cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check `values` against the settings of dataclass `cls`; unknown names and values outside the limits fail."""
    fields = {f.name: f for f in dataclasses.fields(cls) if "meaning" in f.metadata}
    hints = typing.get_type_hints(cls)
    prefix = f"{owner}." if owner else ""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name not in fields:
            raise BadInput(f"{prefix}{name}: there is no such field; {nearest(name, fields)}")
        result[name] = _check(f"{prefix}{name}", value, hints[name], fields[name].metadata)
    return result


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
    if not within or (limits["choices"] and isinstance(value, str) and value not in limits["choices"]):
        hint = f" ({nearest(value, limits['choices'])})" if limits["choices"] and isinstance(value, str) else ""
        raise BadInput(f"{name}: got {value!r}; it takes {takes}{hint if 'did you' in hint else ''}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _convert(value: Any, kind: Any, fail: BadInput) -> Any:
    """Bring `value` to `kind`: a whole float may stand for an int and an int for a float, nothing else is bent."""
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
        if isinstance(value, list | tuple):
            return tuple(_convert(v, typing.get_args(kind)[0], fail) for v in value)  # pyright: ignore[reportUnknownVariableType]
    elif isinstance(value, bool) or kind is bool:
        if isinstance(value, bool) and kind is bool:
            return value
    elif kind is int and isinstance(value, int | float) and float(value).is_integer():
        return int(value)
    elif kind is float and isinstance(value, int | float):
        return float(value)
    elif kind is str and isinstance(value, str):
        return value
    raise fail


def _takes(kind: Any, limits: Mapping[str, Any]) -> str:
    """What a field takes, in words: 'a number from 0 to 1', 'one of a, b, c'."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    words = {int: "a whole number", float: "a number", bool: "true or false"}
    said = [words[o] for o in options if o in words]
    said += [f"a list with each {words[typing.get_args(o)[0]]}" for o in options if typing.get_origin(o) is tuple]
    if said and limits["least"] is not None and limits["most"] is not None:
        said[-1] += f" from {limits['least']:g} to {limits['most']:g}"
    elif said:
        signs = {"least": "of at least", "above": "above", "most": "of at most", "below": "below"}
        bounds = [f"{sign} {limits[key]:g}" for key, sign in signs.items() if limits[key] is not None]
        said[-1] += (" " + " and ".join(bounds)) if bounds else ""
    if str in options:
        said.append(f"one of {', '.join(limits['choices'])}" if limits["choices"] else "a text")
    return " or ".join(said)
