"""Files that are there whole or not at all, also after a power cut: synced to the disk before they are renamed."""

from __future__ import annotations

import csv
import errno
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROBE_BYTES = 512


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file. An interruption or a power cut leaves the old content or the new one, never half of it."""
    half = path.with_name(path.name + ".half")
    if isinstance(content, str):
        half.write_text(content, encoding="utf-8")
    else:
        half.write_bytes(content)
    replace_synced(half, path)
    sync(path.parent)


def replace_synced(half: Path, path: Path) -> None:
    """Give a file its name once it is on the disk. A power cut can keep the name of a file, and lose what it holds."""
    sync(half)
    half.replace(path)


def try_writing(folder: Path) -> None:
    """Write a small file, without a name, into a folder or its nearest parent that is there; OSError if that fails.

    It is tried, not asked for: permissions say nothing of a full disk, nor of a file system that takes no files.
    """
    existing = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    with tempfile.TemporaryFile(dir=existing) as probe:
        probe.write(bytes(PROBE_BYTES))
        probe.flush()


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
