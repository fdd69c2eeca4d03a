"""No tensor is made without a device: everything trains on the CPU while torch's default device computes nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedlga import Experiment, Task, rounds
from fedlga.core.kernels.updates import sum_with_signs, weighted_sum
from fedlga.core.registry import names_of

SMALL = {"dataset": "digits", "devices": 10, "cohort": 4, "rounds": 2, "backend": "serial"}


@pytest.fixture
def meta():
    before = torch.get_default_device()
    torch.set_default_device("meta")
    yield
    torch.set_default_device(before)


def train(experiment, task=None):
    return [record.metrics for record in rounds(experiment, task=task)]


def make_task(model, x, y, **more):
    return Task(model, (x, y), **more)


def norm():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.score = nn.Embedding(9, 4), nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 9)

    def forward(self, x):
        return self.score(self.lstm(self.embed(x))[0])


RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(120, 3, 8, 8)), RNG.integers(0, 3, 120)
CASES = {
    "compiled": ({}, None),
    "autograd": ({"model": "cnn", "augment": True, "resize": 16, "clip": 1.0, "momentum": 0.5}, None),
    "audit, median, yogi": ({"aggregation": "median", "server_optimizer": "yogi", "audit": True}, None),
    "trimmed mean, adam": ({"aggregation": "trimmed-mean", "trim": 0.3, "server_optimizer": "adam"}, None),
    "regression": ({}, make_task(lambda: nn.Linear(4, 1), RNG.normal(size=(90, 4)), RNG.normal(size=90))),
    "norm": ({"local_optimizer": "adamw", "weight_decay": 0.1}, make_task(norm, *IMAGES)),
    "own norm": ({"batch_norm": "device", "label_smoothing": 0.1}, make_task(norm, *IMAGES)),
    "text": ({}, make_task(Reader, RNG.integers(0, 9, (60, 7)), RNG.integers(0, 9, (60, 7)))),
    "bfloat16": (
        {},
        make_task(lambda: nn.Sequential(nn.Linear(4, 2)).bfloat16(), torch.ones(60, 4).bfloat16(), [0, 1] * 30),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_made_on_the_default_device(name, request):
    settings, task = CASES[name]
    experiment = Experiment(rounds=2, backend="serial", **settings) if task else Experiment(**SMALL, **settings)
    before = train(experiment, task)
    request.getfixturevalue("meta")
    assert train(experiment, task) == before


PAIRS = [(m, p) for m in names_of("method") for p in names_of("policy") if m != "fedlga" or p == "complete"]


@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_nor_by_any_method_with_any_policy(method, policy, meta):
    for metrics in train(Experiment(**SMALL, model="cnn", method=method, stragglers=policy)):
        assert metrics["loss"] is not None


def test_compiled_passes_leave_other_devices_alone():
    """They read memory by its address: a tensor elsewhere would crash the process."""
    elsewhere = torch.zeros(3, 4096, device="meta")
    assert sum_with_signs(elsewhere, torch.ones(3), torch.zeros(4096)) is None
    assert sum_with_signs(torch.zeros(3, 4096), torch.ones(3), torch.zeros(4096, device="meta")) is None
    assert weighted_sum([torch.zeros(5), torch.zeros(5, device="meta")], [1.0, 1.0]) is None
