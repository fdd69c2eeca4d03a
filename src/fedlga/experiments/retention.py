"""Which old runs go: the finished ones, oldest first, and never one that goes on."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from fedlga.core.settings import BadInput
from fedlga.experiments.folder import hold_folder
from fedlga.experiments.records import EXPERIMENT, ROUNDS, SUMMARY


def prune_runs(
    parent: Path, *, keep: int, days: float = 0.0, unfinished: bool = False, dry_run: bool = False
) -> list[tuple[Path, int]]:
    """Remove old runs from a folder of runs; return them with their sizes in bytes.

    The `keep` newest finished runs stay, and all that were written to in the last `days`. Runs that could be continued
    stay too, unless `unfinished`, and one that has other runs inside. Other files and folders are not touched, nor are
    links followed.
    """
    if keep < 0:
        raise BadInput(f"--keep: got {keep}; it takes 0 or more")
    if not days >= 0:
        raise BadInput(f"--days: got {days}; it takes 0 or more")
    runs = [path for path in parent.iterdir() if _is_run(path)] if parent.is_dir() else []
    written = {path: when for path in runs if (when := _last_written(path)) is not None}
    newest_first = sorted(written, key=lambda run: written[run], reverse=True)
    candidates = [run for run in newest_first if unfinished or (run / SUMMARY).is_file()][keep:]
    limit = time.time() - days * 86_400
    removed: list[tuple[Path, int]] = []
    for run in candidates:
        if written[run] > limit and days:
            continue
        with hold_folder(run) as held:  # nobody can start to continue it now
            if not held or not _is_run(run) or _holds_runs(run):
                continue
            size = sum(file.lstat().st_size for file in run.rglob("*") if not file.is_dir())
            if not dry_run:
                try:
                    shutil.rmtree(run)
                except OSError as error:
                    raise BadInput(f"cannot remove {str(run)!r} ({error.strerror})") from error
            removed.append((run, size))
    return removed


def _is_run(path: Path) -> bool:
    return not path.is_symlink() and (path / EXPERIMENT).is_file() and (path / ROUNDS).is_file()


def _holds_runs(run: Path) -> bool:
    """Return whether another run was put into a run's folder: it may go on."""
    return any(file.parent != run for name in (EXPERIMENT, ROUNDS) for file in run.rglob(name))


def _last_written(run: Path) -> float | None:
    """Return when a run was written to; None if it has just been removed."""
    try:
        return (run / ROUNDS).stat().st_mtime
    except OSError:
        return None
