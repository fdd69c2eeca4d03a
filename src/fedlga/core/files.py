"""Files that are there whole or not at all, also after a power cut: synced to the disk before they are renamed."""

from __future__ import annotations

import csv
import errno
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Write a text file. An interruption or a power cut leaves the old text or the new one, never half of it."""
    half = path.with_name(path.name + ".half")
    half.write_text(text, encoding="utf-8")
    sync(half)
    half.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until what a file holds, or which files a folder has, is on the disk."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot
            raise
    finally:
        os.close(descriptor)


def format_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same names as CSV."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
