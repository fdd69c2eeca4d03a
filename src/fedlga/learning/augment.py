"""What is done to a batch of colour images before it is learned from."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import interpolate, pad

PADDING = 4  # pixels around the image before the crop: zeros, which after normalising is the mean colour


def crop_and_flip(images: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """A random crop of the original size from the padded image, and a mirror image for half of them."""
    count, _, height, width = images.shape
    padded = pad(images, (PADDING,) * 4)
    rows = torch.from_numpy(rng.integers(0, 2 * PADDING + 1, count))[:, None] + torch.arange(height)
    columns = torch.from_numpy(rng.integers(0, 2 * PADDING + 1, count))[:, None] + torch.arange(width)
    flipped = torch.from_numpy(rng.random(count) < 0.5)  # noqa: PLR2004
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    which = torch.arange(count)[:, None, None]
    # Indices apart from each other move the channels last: bring them back.
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def resized(images: torch.Tensor, side: int) -> torch.Tensor:
    """Images of another size; 0: as they are. Done batch by batch: CIFAR at 224 x 224 would fill 30 GB."""
    return interpolate(images, size=side, mode="bilinear", antialias=True) if side else images
