"""Small datasets in the shapes of the real ones."""

from __future__ import annotations

import torch

from fedlga.data.datasets import Data


def tiny_cifar(train: int = 100, test: int = 20, classes: int = 10) -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        train_images=torch.randn(train, 3, 32, 32, generator=generator),
        train_labels=torch.arange(train) % classes,
        test_images=torch.randn(test, 3, 32, 32, generator=generator),
        test_labels=torch.arange(test) % classes,
        classes=classes,
    )
