"""Fetch datasets into a cache, and load them as tensors."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.learning.datasets.base import Data, Dataset, FileSet
from fedlga.learning.datasets.sources import Progress, Unreachable

if TYPE_CHECKING:
    import torch

    from fedlga.core.types import Array


def cache_folder(folder: str | Path | None = None) -> Path:
    """Return where data is kept: this folder; without one, $FEDLGA_DATA or the user's cache."""
    if folder or (folder := os.environ.get("FEDLGA_DATA")):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlga"


def ignore_progress(what: str, done: int, total: int | None) -> None:
    """Show nothing of a download."""


def fetch(name: str, cache: Path, progress: Progress = ignore_progress) -> Path:
    """Make sure that a dataset's files are in the cache, from the first source that has them; return their folder."""
    return fetch_files(name, create("dataset", name), cache, progress)


def fetch_files(name: str, dataset: FileSet, cache: Path, progress: Progress = ignore_progress) -> Path:
    """Make sure that files are in the cache; return their folder."""
    folder = cache / dataset.folder
    if not dataset.missing(folder):
        return folder
    from filelock import FileLock

    # One fetch at a time: a second process waits, and then the data is there. The lock is not in the user's folder.
    lock = hashlib.sha256(str(cache.absolute()).encode()).hexdigest()[:16]
    try:
        with FileLock(Path(tempfile.gettempdir()) / f"fedlga-{lock}.lock", mode=0o666):
            return _fetch(name, dataset, cache, progress)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(
            f"data folder: cannot write to {str(cache)!r} ({reason}); set another with --data-dir"
        ) from error


def _fetch(name: str, dataset: FileSet, cache: Path, progress: Progress) -> Path:
    folder, partial = cache / dataset.folder, cache / "partial"
    if not dataset.missing(folder):
        return folder
    is_new = not cache.exists()
    partial.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    failures: list[str] = []
    try:
        for source in dataset.sources:
            staging = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=partial))
            try:
                source.fetch(staging, partial, progress)
                for file in dataset.files:
                    dataset.verify(staging / file)
                for file in dataset.files:
                    (staging / file).replace(folder / file)
                return folder
            except (Unreachable, BadInput) as error:
                failures.append(f"{source.name}: {error}")
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    finally:
        for created in (partial, folder, *([cache] if is_new else [])):
            if created.is_dir() and not any(created.iterdir()):  # a download that can be continued keeps its folder
                created.rmdir()
    raise BadInput(
        f"dataset: {name} cannot be fetched here ({'; '.join(failures)}); "
        f"put the publisher's files {', '.join(dataset.files)} into {folder}"
    )


def load(
    name: str,
    cache: Path,
    *,
    settings: Mapping[str, Any] | None = None,
    normalise: bool = True,
    progress: Progress | None = None,
) -> Data:
    """Return a dataset as tensors, checked byte by byte; fetch it first if it is not there."""
    import torch

    dataset: Dataset = create("dataset", name, settings)
    folder = fetch(name, cache, progress or ignore_progress) if dataset.files else cache
    (train, train_labels), (test, test_labels) = dataset.read(folder)
    mean = torch.tensor(dataset.mean if normalise else (0.0,), device="cpu").reshape(1, -1, 1, 1)
    std = torch.tensor(dataset.std if normalise else (1.0,), device="cpu").reshape(1, -1, 1, 1)

    def images(array: Array) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).div_(dataset.top).sub_(mean).div_(std)

    return Data(
        train_images=images(train),
        train_labels=torch.from_numpy(train_labels.astype(np.int64)),
        test_images=images(test),
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        classes=dataset.classes,
    )
