"""Which folder a run, a comparison or a search is written into, and that nobody else writes there."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fedlga.core.files import try_writing
from fedlga.core.settings import BadInput
from fedlga.experiments.records import EXPERIMENT, ROUNDS

# What is no name of a folder: --out of a run takes one.
FILE_SUFFIXES = (
    *(".csv", ".gz", ".htm", ".html", ".jpg", ".json", ".jsonl", ".md", ".pdf", ".png", ".pt", ".pth"),
    *(".py", ".safetensors", ".svg", ".tex", ".toml", ".txt", ".xlsx", ".yaml", ".yml", ".zip"),
)


def choose_folder(out: str | Path | None, parent: str, name: str) -> Path:
    """Return the folder that was asked for, or a new one in `parent`."""
    return _find_new_folder(parent, name) if out is None else check_folder(out)


def check_folder(out: str | Path) -> Path:
    """Return a folder by its name; BadInput if that looks like a file's: several are written."""
    if str(out) == "":
        raise BadInput("--out: got ''; it takes the name of a folder")
    folder = Path(out)
    if folder.suffix.lower() in FILE_SUFFIXES and not folder.is_dir():
        raise BadInput(f"--out: got {str(folder)!r}; it takes a folder, for several files")
    return folder


def _find_new_folder(parent: str, name: str) -> Path:
    """Return a folder name that is not taken."""
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}".replace(":", ".")
    folder, count = Path(parent) / stem, 1
    while folder.exists():
        count += 1
        folder = Path(parent) / f"{stem}-{count}"
    return folder


def check_free(folder: Path) -> None:
    """Raise BadInput unless a new run can have this folder, and it can be written. Nothing is created."""
    try:
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"--out: {str(folder)!r} is a file; it takes a folder")
        for ours in (EXPERIMENT, ROUNDS, "comparison.toml", "tuning.toml"):
            if (folder / ours).exists():
                raise BadInput(f"--out: {str(folder)!r} already holds another run; take another folder, or --resume it")
        if (other := _find_run_below(folder)) is not None:
            raise BadInput(
                f"--out: {str(folder)!r} holds other runs, such as {str(other.relative_to(folder))!r}; "
                f"take a folder of its own, such as {str(folder / 'NAME')!r}"
            )
        try_writing(folder)
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(folder)!r} ({error.strerror})") from error


def _find_run_below(folder: Path) -> Path | None:
    """Return a run that is inside a folder, as deep as runs and comparisons are kept; None if there is none."""
    for pattern in ("*", "*/*"):
        for file in folder.glob(f"{pattern}/{EXPERIMENT}"):
            if (file.parent / ROUNDS).exists():  # else it is somebody's own file of that name
                return file.parent
    return None


class _Taken(BadInput):
    """Another process works in the folder."""


@contextmanager
def lock_folder(folder: Path, *, new: bool) -> Generator[None]:
    """Reserve a run's folder for this process. The system releases it when the process ends, in whatever way."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: two runs in one folder are not detected there
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(folder)!r} ({error.strerror})") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _Taken(f"--out: another process is at work in {str(folder)!r}") from error
        except OSError:
            pass  # a file system without locks, such as some network file systems
        if new:
            check_free(folder)  # again: another process may have started since
        yield
    finally:
        os.close(descriptor)


@contextmanager
def hold_folder(folder: Path) -> Generator[bool]:
    """Keep other processes from working in a run's folder; yield False if one does already."""
    try:
        with lock_folder(folder, new=False):
            yield True
    except _Taken:
        yield False
