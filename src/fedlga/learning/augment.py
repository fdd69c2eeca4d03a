"""Changes to a batch of images before the model gets them: random crops and mirroring, and another size."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn.functional import interpolate, pad

PADDING = 4  # pixels around the image before the crop: zeros, the mean colour of normalised images


def crop_and_flip(images: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
    """Return a random crop of the original size from each padded image, mirrored for half of them."""
    count, _, height, width = images.shape
    padded = pad(images, (PADDING,) * 4)
    rows = torch.from_numpy(rng.integers(0, 2 * PADDING + 1, count))[:, None] + torch.arange(height, device="cpu")
    columns = torch.from_numpy(rng.integers(0, 2 * PADDING + 1, count))[:, None] + torch.arange(width, device="cpu")
    flipped = torch.from_numpy(rng.random(count) < 0.5)  # noqa: PLR2004
    columns = torch.where(flipped[:, None], columns.flip(1), columns)
    rows, columns = rows.to(images.device), columns.to(images.device)
    index = torch.arange(count, device=images.device)[:, None, None]
    # Indexing with a slice between index tensors puts the channels last: `permute` moves them back.
    return padded[index, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def resize_images(images: torch.Tensor, side: int) -> torch.Tensor:
    """Return images of another size; 0: as they are. Done batch by batch: CIFAR at 224 x 224 would take 30 GB."""
    return interpolate(images, size=side, mode="bilinear", antialias=True) if side else images
