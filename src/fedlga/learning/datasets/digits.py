"""Digits: the 1,797 handwritten digits that scikit-learn ships; they come with the package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from fedlga.learning.datasets.base import Dataset

if TYPE_CHECKING:
    from fedlga.learning.datasets.base import Arrays


@final
@dataclass(frozen=True)
class Digits(Dataset):
    """8 x 8 pixels; every fifth image is for testing."""

    title = "Digits: 1,438 + 359 grey images of 8 x 8, part of the package"
    classes = 10
    mean = (0.3058,)
    std = (0.3764,)
    top = 16

    def read(self, folder: Path) -> tuple[Arrays, Arrays]:  # noqa: D102
        with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as stored:
            images, labels = stored["images"][:, None], stored["labels"]
        test = np.arange(len(labels)) % 5 == 4  # noqa: PLR2004
        return (images[~test], labels[~test]), (images[test], labels[test])
