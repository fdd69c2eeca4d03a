"""Images in folders, one a device: photos/DEVICE/CLASS/*.png.

fedlga run images_in_folders.py
"""

from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn

FOLDER = Path("photos")


def data():
    """Return the folder; each folder in it is a device, with a folder of images for each class."""
    if not FOLDER.exists():
        draw_examples()
    return FOLDER


def draw_examples():
    """Draw discs, squares and stripes, with a colour that each device prefers, in place of your own photos."""
    rng = np.random.default_rng(0)
    for device in range(8):
        for shape in ("disc", "square", "stripes"):
            (FOLDER / f"camera-{device}" / shape).mkdir(parents=True)
            for number in range(30):
                y, x = np.mgrid[:24, :24] - rng.integers(9, 15, (2, 1, 1))
                inside = {"disc": x**2 + y**2 < 40, "square": np.maximum(abs(x), abs(y)) < 6, "stripes": x % 6 < 3}[
                    shape
                ]
                picture = rng.integers(0, 90, (24, 24, 3)) + inside[..., None] * rng.integers(60, 160, 3)
                picture[..., device % 3] //= 2
                Image.fromarray(picture.astype(np.uint8)).save(FOLDER / f"camera-{device}" / shape / f"{number}.png")


def model():
    """Return a small CNN with BatchNorm, whose statistics are averaged like the weights."""
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.Conv2d(16, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 3)
    )


experiment = {"lr": 0.05, "rounds": 20, "batch_size": 8, "epochs": 4}
