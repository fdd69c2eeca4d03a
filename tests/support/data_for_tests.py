"""Small datasets in the shapes of the real ones."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from fedlga.learning.datasets.base import Data
from fedlga.learning.datasets.sources import Publisher
from fedlga.learning.examples import TensorExamples
from fedlga.learning.named import named_task
from fedlga.learning.reading import TaskData

_RNG = np.random.default_rng(0)
FASHION_PIXELS = {
    "train": _RNG.integers(0, 256, (12, 784), np.uint8),
    "t10k": _RNG.integers(0, 256, (4, 784), np.uint8),
}
FASHION_LABELS = {"train": _RNG.integers(0, 10, 12, np.uint8), "t10k": _RNG.integers(0, 10, 4, np.uint8)}
# What the files of a small Fashion-MNIST hold, before they are compressed.
FASHION_FILES = {
    **{f"{s}-images-idx3-ubyte.gz": b"\0" * 16 + FASHION_PIXELS[s].tobytes() for s in FASHION_PIXELS},
    **{f"{s}-labels-idx1-ubyte.gz": b"\0" * 8 + FASHION_LABELS[s].tobytes() for s in FASHION_LABELS},
}


def fashion_hashes() -> dict[str, str]:
    """Return the hashes of the small Fashion-MNIST, as `FashionMnist.files` has those of the real one."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in FASHION_FILES.items()}


def fashion_publisher(address: str) -> Publisher:
    """Return a publisher of the small Fashion-MNIST at an address."""
    return Publisher([f"{address}/{name}" for name in FASHION_FILES])


def tiny_cifar(train: int = 100, test: int = 20, classes: int = 10) -> Data:
    """Return random images of CIFAR's shape."""
    generator = torch.Generator().manual_seed(0)
    return Data(
        train_images=torch.randn(train, 3, 32, 32, generator=generator),
        train_labels=torch.arange(train) % classes,
        test_images=torch.randn(test, 3, 32, 32, generator=generator),
        test_labels=torch.arange(test) % classes,
        classes=classes,
    )


def as_task_data(data: Data, model: str) -> TaskData:
    """Return a dataset as an experiment with a named model gets it."""
    train = TensorExamples(data.train_images, data.train_labels)
    test = TensorExamples(data.test_images, data.test_labels)
    return TaskData(named_task(model, data.shape, data.classes), train, test)
