"""Small files, written atomically."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Write a text file. An interruption leaves the old text or the new one, never half of it."""
    half = path.with_name(path.name + ".half")
    half.write_text(text, encoding="utf-8")
    half.replace(path)


def format_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same names as CSV."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
