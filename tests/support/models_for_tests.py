"""A user's own models, good and bad."""

from __future__ import annotations

import torch
from torch import nn


def with_dropout(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 16), nn.Dropout(0.5), nn.Linear(16, classes))


def in_eval_mode(shape, classes):
    return with_dropout(shape, classes).eval()


def with_batch_norm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], 16), nn.BatchNorm1d(16), nn.Linear(16, classes))


class _Scaled(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.register_buffer("scale", torch.tensor(2.0))
        self.layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)

    def forward(self, x):
        return self.layer(x.flatten(1) * self.scale)


def with_constant_buffer(shape, classes):
    return _Scaled(shape, classes)


class _Fails(_Scaled):
    def forward(self, x):
        if torch.is_grad_enabled() and len(x) > 2:  # a model is tried on two examples before the run
            raise RuntimeError("this model does not want to be trained")
        return super().forward(x)


def fails_in_training(shape, classes):
    return _Fails(shape, classes)


def with_a_frozen_layer(shape, classes):
    model = with_dropout(shape, classes)
    model[1].weight.requires_grad_(False)
    return model


def too_few_scores(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes - 1))


def wrong_shape(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, classes))


def doubles(shape, classes):
    return with_dropout(shape, classes).double()


def nothing_to_train(shape, classes):
    return nn.Flatten()


def not_a_module(shape, classes):
    return "a model"


class Viewing(nn.Module):
    """A convolution whose output is flattened with `view`, which does not work with channels last."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.last = nn.Linear(4 * 64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.convolution(x)).view(x.size(0), -1))


def with_a_view(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return Viewing(classes)
