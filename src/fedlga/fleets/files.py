"""Reading the CSV files that say how fast devices are."""

from __future__ import annotations

import csv
from pathlib import Path

from fedlga.core.settings import BadInput


def read_rows(what: str, path: Path, columns: set[str], takes: str) -> list[tuple[str, dict[str, str]]]:
    """Return where each row stands, to begin a message with, and the row; BadInput unless it has these columns.

    `what` is the setting that names the file, `takes` the columns in words.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{what}: cannot read {str(path)!r} ({reason})") from error
    if not rows:
        raise BadInput(f"{what}: {str(path)!r} has no rows; it takes columns {takes}")
    if missing := columns - set(rows[0]):
        raise BadInput(f"{what}: {str(path)!r} has no column {', '.join(sorted(missing))}; it takes {takes}")
    return [(f"{what}: line {line} of {str(path)!r}", row) for line, row in enumerate(rows, start=2)]
