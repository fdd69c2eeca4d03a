"""Texts of the command line as values: settings and seeds."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from fedlga.core.settings import BadInput

LONGEST_VALUE = 100_000  # letters of an option
MOST_SEEDS, MOST_DIGITS = 10_000, 18


def parse_setting(text: str, option: str = "--set") -> tuple[str, Any]:
    """Return the key and value of 'key=value', as given to an option; a value that is not TOML is a text."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"{option}: got {text!r}; it takes key=value")
    if len(raw) > LONGEST_VALUE:
        raise BadInput(
            f"{option}: the value of {key.strip()!r} has {len(raw)} letters; it takes {LONGEST_VALUE} at most"
        )
    try:
        return key.strip(), tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), raw.strip()
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{option}: the value of {key.strip()!r} cannot be read") from error


def parse_seeds(text: str, option: str = "--seeds") -> Sequence[int]:
    """Return the seeds of '0-4' or '0,3,7' or '0 3 7' or all of it, as given to an option."""
    seeds: list[int] = []
    for part in re.sub(r"\s*-\s*", "-", text.strip()).replace(",", " ").split() or [""]:
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or max(len(first), len(last)) > MOST_DIGITS:
            raise BadInput(f"{option}: got {text[:50]!r}; it takes numbers and ranges, such as 0-4 or 0,3,7")
        numbers = range(int(first), int(last if dash else first) + 1)
        if len(seeds) + len(numbers) > MOST_SEEDS:
            raise BadInput(f"{option}: got {text[:50]!r}; it takes {MOST_SEEDS} seeds at most")
        seeds += numbers
    if not seeds or len(set(seeds)) < len(seeds):
        raise BadInput(f"{option}: got {text!r}; it takes at least one seed, each once")
    return seeds
