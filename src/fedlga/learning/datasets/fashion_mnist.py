"""Fashion-MNIST: Xiao et al. 2017, in the publisher's IDX files."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from fedlga.core.settings import BadInput
from fedlga.learning.datasets.base import Dataset
from fedlga.learning.datasets.sources import DebianPackage, Publisher

if TYPE_CHECKING:
    from fedlga.learning.datasets.base import Arrays

_FILES = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
MOST_BYTES = 64_000_000  # of a file: 60,000 images are 47 million
_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # http is enough: the bytes are checked


@final
@dataclass(frozen=True)
class FashionMnist(Dataset):
    """60,000 + 10,000 grey images of 28 x 28, 10 kinds of clothing."""

    title = "Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28, 10 kinds of clothing"
    classes = 10
    mean = (0.2860,)
    std = (0.3530,)
    folder = "fashion-mnist"
    files = _FILES
    sources = (
        Publisher([_ADDRESS + name for name in _FILES]),
        DebianPackage("dataset-fashion-mnist", tuple(_FILES)),
    )

    def content(self, file: Path) -> bytes:
        """Decompress: packagers compress anew, so the hash is of what is inside."""
        with gzip.open(file) as opened:
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise BadInput(f"data: {str(file)!r} holds more than Fashion-MNIST has")
        return content

    def read(self, folder: Path) -> tuple[Arrays, Arrays]:  # noqa: D102
        def split(name: str) -> Arrays:
            pixels = np.frombuffer(self.verify(folder / f"{name}-images-idx3-ubyte.gz"), np.uint8, offset=16)
            labels = np.frombuffer(self.verify(folder / f"{name}-labels-idx1-ubyte.gz"), np.uint8, offset=8)
            return pixels.reshape(-1, 1, 28, 28), labels

        return split("train"), split("t10k")
