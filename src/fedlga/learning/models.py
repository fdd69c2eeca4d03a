"""The models: MLP-400, a small CNN, ResNet-20 with GroupNorm, and a user's own as 'package.module:function'."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

Shape = tuple[int, int, int]  # channels, height, width


def mlp(shape: Shape, classes: int) -> nn.Module:
    """The paper's model for Fashion-MNIST: one hidden layer of 400 units."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 400), nn.ReLU(), nn.Linear(400, classes))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions of 16 and 32 channels, each followed by pooling, and one hidden layer of 64 units."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


class Block(nn.Module):
    """Two 3 x 3 convolutions with GroupNorm, and a shortcut.

    If the size changes, the shortcut is a strided slice padded with zero channels, without parameters: option A of
    He et al. 2016, section 4.2.
    """

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm_first = nn.GroupNorm(groups, outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm_second = nn.GroupNorm(groups, outside)
        self.stride, self.extra = stride, outside - inside

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        y = self.norm_second(self.second(torch.relu(self.norm_first(self.first(x)))))
        if self.extra:
            x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return torch.relu(x + y)


def resnet20(shape: Shape, classes: int) -> nn.Module:
    """ResNet-20 (16, 32, 64 channels) with GroupNorm of 2 groups, as Hsieh et al. 2020 use it on non-iid data."""
    groups = 2
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 16, 3, padding=1, bias=False), nn.GroupNorm(groups, 16), nn.ReLU()]
    inside = 16
    for outside in (16, 32, 64):
        for index in range(3):
            layers.append(Block(inside, outside, 2 if index == 0 and outside > 16 else 1, groups))  # noqa: PLR2004
            inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
