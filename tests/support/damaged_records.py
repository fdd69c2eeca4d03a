"""Ways in which a rounds.jsonl of at least four rounds can be damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Lines = Sequence[bytes]  # each with its newline


@dataclass(frozen=True)
class Damage:
    """One way: what the file holds then, and what is said of it."""

    damage: Callable[[Lines], bytes]
    message: str  # after the name of the file


def replace_line(number: int, line: bytes) -> Callable[[Lines], bytes]:
    """Return a damage that puts something else in the place of a line; numbers are counted from 1."""
    return lambda lines: b"".join([*lines[: number - 1], line, *lines[number:]])


def change_fields(number: int, **fields: Any) -> Callable[[Lines], bytes]:
    """Return a damage that changes fields of a line, or adds some."""

    def damage(lines: Lines) -> bytes:
        line = json.dumps({**json.loads(lines[number - 1]), **fields}).encode() + b"\n"
        return replace_line(number, line)(lines)

    return damage


def drop_field(number: int, name: str) -> Callable[[Lines], bytes]:
    """Return a damage that leaves a field of a line out."""

    def damage(lines: Lines) -> bytes:
        values = json.loads(lines[number - 1])
        del values[name]
        return replace_line(number, json.dumps(values).encode() + b"\n")(lines)

    return damage


def put_byte(number: int, byte: bytes) -> Callable[[Lines], bytes]:
    """Return a damage that puts a byte into the text of a note."""

    def damage(lines: Lines) -> bytes:
        line = change_fields(number, note="a note")(lines).splitlines(keepends=True)[number - 1]
        return replace_line(number, line.replace(b"a note", b"a" + byte + b"note"))(lines)

    return damage


NOT_A_RECORD = "cannot be read (not a record); the file is left as it is"
DAMAGES = {
    "a later version": Damage(
        change_fields(2, version=4),
        "line 2 cannot be read (record: got version 4; this fedlga reads 1 to 3); the file is left as it is",
    ),
    "a missing field": Damage(
        drop_field(2, "devices"),
        "line 2 cannot be read (record: no field 'devices'); the file is left as it is",
    ),
    "a missing metric": Damage(
        drop_field(2, "accuracy"),
        "line 2 cannot be read (record: the field 'metrics' does not list metrics that are there); "
        "the file is left as it is",
    ),
    "another type": Damage(
        change_fields(2, accuracy="high"),
        "line 2 cannot be read (record: accuracy is not of the type that it should be); the file is left as it is",
    ),
    "another type in a list": Damage(
        change_fields(2, steps=[1, "2"]),
        "line 2 cannot be read (record: steps is not of the type that it should be); the file is left as it is",
    ),
    "garbage": Damage(replace_line(2, b"not what it was\n"), f"line 2 {NOT_A_RECORD}"),
    "a list": Damage(replace_line(2, b"[1, 2]\n"), f"line 2 {NOT_A_RECORD}"),
    "brackets without end": Damage(replace_line(2, b"[" * 200_000 + b"\n"), f"line 2 {NOT_A_RECORD}"),
    "an empty line": Damage(replace_line(2, b"\n"), f"line 2 {NOT_A_RECORD}"),
    "zeros, as after a crash of the machine": Damage(
        lambda lines: lines[0] + b"\0" * 500 + b"\n", f"line 2 {NOT_A_RECORD}"
    ),
    "a byte that is not UTF-8": Damage(put_byte(2, b"\xff"), f"line 2 {NOT_A_RECORD}"),
    "a missing round": Damage(replace_line(2, b""), "line 2 is round 3, not 2; the file is left as it is"),
    "a round twice": Damage(
        lambda lines: b"".join([*lines[:2], *lines[1:]]), "line 3 is round 2, not 3; the file is left as it is"
    ),
    "another end of line": Damage(
        lambda lines: lines[0] + lines[1].replace(b"\n", b"\r") + b"".join(lines[2:]), f"line 2 {NOT_A_RECORD}"
    ),
    "garbage in a whole last line": Damage(
        lambda lines: b"".join(lines[:3]) + b'{"round": 4, "acc\n', f"line 4 {NOT_A_RECORD}"
    ),
}
