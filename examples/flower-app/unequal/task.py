"""Model, data and training: as in any Flower app with PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedlga.data.datasets import cache_folder, load
from fedlga.data.partition import partition


def net() -> nn.Module:
    """A small network for images of 8 x 8."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id: int, num_partitions: int) -> DataLoader:
    """What one device trains on: digits that come with fedlga, dealt out unevenly."""
    data = load("digits", cache_folder(None), normalise=True)
    labels = data.train_labels.numpy()
    parts = partition("dirichlet", labels, num_partitions, 0, classes=10, classes_per_device=2, alpha=0.5)
    mine = parts[partition_id]
    return DataLoader(TensorDataset(data.train_images[mine], data.train_labels[mine]), batch_size=10, shuffle=True)


def train(model: nn.Module, loader: DataLoader, steps: int, lr: float) -> float:
    """SGD for some steps; the mean loss."""
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
    """The accuracy on the test images."""
    data = load("digits", cache_folder(None), normalise=True)
    return float((model(data.test_images).argmax(1) == data.test_labels).float().mean())
