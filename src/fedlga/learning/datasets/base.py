"""What a dataset is: which files hold it, what their contents must hash to, and how to read them.

Images are uint8 arrays of (count, channels, height, width) until `load` normalises them.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from fedlga.core.settings import BadInput
from fedlga.learning.datasets.sources import Source

if TYPE_CHECKING:
    import torch

    from fedlga.core.types import Array

    Arrays = tuple[Array, Array]  # images as uint8, labels


@dataclass(frozen=True)
class Data:
    """A dataset ready for training: images as float32 (count, channels, height, width), labels as int64."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width


@dataclass(frozen=True)
class FileSet:
    """Files that hold data: what their contents must hash to, and where they can be fetched."""

    title: ClassVar[str]
    folder: ClassVar[str] = ""  # in the cache
    files: ClassVar[Mapping[str, str]] = {}  # names, and the SHA-256 of what each holds; empty: nothing to fetch
    sources: ClassVar[Sequence[Source]] = ()  # where to fetch them from: the first that works

    def content(self, file: Path) -> bytes:
        """Return what a file holds, in the order that its hash is taken of."""
        return file.read_bytes()

    def verify(self, file: Path) -> bytes:
        """Return what a file holds; BadInput if it is not what the publisher gave out."""
        try:
            content = self.content(file)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"{_describe_damage(file)} ({getattr(error, 'strerror', None) or error})") from error
        if hashlib.sha256(content).hexdigest() != self.files[file.name]:
            raise BadInput(f"{_describe_damage(file)} (its contents are not the publisher's)")
        return content

    def missing(self, folder: Path) -> list[str]:
        """Return the files that are not there."""
        return [name for name in self.files if not os.path.isfile(folder / name)]  # noqa: PTH113 (raises nothing)


@dataclass(frozen=True)
class Dataset(FileSet, ABC):
    """One dataset. A subclass sets the class attributes and implements `read`."""

    classes: ClassVar[int]
    mean: ClassVar[tuple[float, ...]] = (0.0,)  # of the training pixels, one a channel, on a scale from 0 to 1
    std: ClassVar[tuple[float, ...]] = (1.0,)
    top: ClassVar[int] = 255  # the largest pixel value

    @abstractmethod
    def read(self, folder: Path) -> tuple[Arrays, Arrays]:
        """Return training and test data from the files in `folder`."""


def _describe_damage(file: Path) -> str:
    return f"data: {str(file)!r} is damaged; delete it and fetch it again"
