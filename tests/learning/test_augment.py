"""Random crops and mirror images, and images of another size."""

from __future__ import annotations

import numpy as np
import torch

import fedlga
from fedlga.learning.augment import crop_and_flip, resize_images


def test_crop_and_flip_gives_windows_of_the_padded_image():
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.float32).reshape(2, 3, 6, 6) + 1
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    rng = np.random.default_rng(3)
    flips = 0
    for _ in range(20):
        for index, image in enumerate(crop_and_flip(images, rng)):
            windows = {
                (dy, dx, flipped)
                for dy in range(9)
                for dx in range(9)
                for flipped, window in ((False, image), (True, image.flip(-1)))
                if torch.equal(window, padded[index, :, dy : dy + 6, dx : dx + 6])
            }
            assert windows
            flips += all(flipped for _, _, flipped in windows)
    assert 8 <= flips <= 32


def test_resizing_changes_height_and_width_only():
    images = torch.rand(2, 3, 8, 8)
    assert resize_images(images, 12).shape == (2, 3, 12, 12)
    assert resize_images(images, 0) is images


def test_resized_images_reach_the_model():
    experiment = fedlga.preset("digits").changed({"resize": 12, "rounds": 1, "model": "cnn"})
    serial, pool = (list(fedlga.rounds(experiment.changed({"backend": b})))[-1] for b in ("serial", "pool"))
    assert serial.loss == pool.loss
    plain = list(fedlga.rounds(experiment.changed({"resize": 0})))[-1]
    assert plain.loss != serial.loss
