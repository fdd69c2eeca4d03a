"""A regression with unequal devices, one dataset each, and a model with BatchNorm."""

from __future__ import annotations

import numpy as np
from torch import nn

SIZES = (40, 12, 25, 33, 9, 60, 18, 21)
experiment = {"cohort": 5, "rounds": 3, "epochs": 3, "batch_size": 8, "lr": 0.05, "rho": 0.8, "averaging": "examples"}


def data():
    rng = np.random.default_rng(0)
    devices = {}
    for device, size in enumerate(SIZES):
        x = rng.normal(device / 4, 1, (size, 3))
        devices[f"sensor-{device}"] = x, x @ [1.0, -2.0, 0.5] + rng.normal(0, 0.1, size)
    return devices


def model():
    return nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


def metrics():
    """One metric for every example, and one that needs all of them."""
    return {
        "mae": "mae",
        "r2": lambda outputs, targets: 1 - ((outputs - targets) ** 2).sum() / targets.var() / len(targets),
    }
