"""What every dataset must hold."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from fedlga.contracts.base import NotChecked, expect
from fedlga.core.registry import create
from fedlga.learning.datasets.base import Dataset
from fedlga.learning.datasets.cache import cache_folder, load


def describes_itself(name: str) -> None:
    """It has a title, classes, a mean and a deviation, and a checksum for each file."""
    dataset: Dataset = create("dataset", name)
    expect(dataset.title and dataset.classes > 1, "title or classes are missing")
    expect(len(dataset.mean) == len(dataset.std), "mean and std differ in length")
    expect(all(re.fullmatch("[0-9a-f]{64}", digest) for digest in dataset.files.values()), "a file has no SHA-256")
    expect(bool(dataset.files) <= bool(dataset.folder), "files need a folder")
    expect(all(Path(file).name == file for file in dataset.files), "a file's name is a path")


def reads_images_and_labels(name: str) -> None:
    """It reads training and test images as uint8, with labels from 0 to classes - 1."""
    dataset: Dataset = create("dataset", name)
    folder = _find(dataset)
    for images, labels in dataset.read(folder):
        expect(images.dtype == np.uint8 and images.ndim == 4, f"images are {images.dtype} of {images.ndim} dimensions")  # noqa: PLR2004
        expect(len(images) == len(labels) > 0, f"{len(images)} images, {len(labels)} labels")
        expect(labels.min() >= 0 and labels.max() < dataset.classes, "a label is beyond the classes")
        expect(images.max() <= dataset.top, f"a pixel is above {dataset.top}")


def loads(name: str) -> None:
    """It loads as finite tensors, normalised by its own mean and deviation."""
    _find(create("dataset", name))
    data = load(name, cache_folder())
    mean, std = float(data.train_images.mean()), float(data.train_images.std())
    expect(abs(mean) < 0.1 and abs(std - 1) < 0.1, f"normalised pixels have mean {mean:.2f} and deviation {std:.2f}")  # noqa: PLR2004


def _find(dataset: Dataset) -> Path:
    folder = cache_folder() / dataset.folder
    if dataset.missing(folder):
        raise NotChecked("the data is not here: fedlga data fetch gets it")
    return folder


CHECKS = [describes_itself, reads_images_and_labels, loads]
