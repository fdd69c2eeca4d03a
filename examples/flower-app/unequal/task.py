"""Model, data and training: as in any Flower app with PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedlga.learning.datasets.cache import cache_folder, load
from fedlga.learning.partitions.base import make_parts
from fedlga.learning.partitions.dirichlet import ByDirichlet


def net() -> nn.Module:
    """Return a small network for images of 8 x 8."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id: int, num_partitions: int) -> DataLoader:
    """Return what one device trains on: digits that come with fedlga, divided unequally."""
    data = load("digits", cache_folder(None), normalise=True)
    labels = data.train_labels.numpy()
    parts = make_parts(ByDirichlet(partition_alpha=0.5), labels, data.classes, num_partitions, seed=0)
    rows = parts[partition_id]
    return DataLoader(TensorDataset(data.train_images[rows], data.train_labels[rows]), batch_size=10, shuffle=True)


def train(model: nn.Module, loader: DataLoader, steps: int, lr: float) -> float:
    """Do some steps of SGD; return their mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses: list[float] = []
    while len(losses) < steps:
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == steps:
                break
    return sum(losses) / len(losses)


@torch.no_grad()
def test(model: nn.Module) -> float:
    """Return the accuracy on the test images."""
    data = load("digits", cache_folder(None), normalise=True)
    return float((model(data.test_images).argmax(1) == data.test_labels).float().mean())
