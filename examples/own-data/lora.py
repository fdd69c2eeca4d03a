"""LoRA: adapt a transformer to other sensors than it was trained on. Only the adapters train, and only they are sent.

fedlga run lora.py

The base is trained in model(), in about a second, on signals of a laboratory: it names the shape of more than 95 % of
them. The devices have other sensors, and the base is right for less than 60 % of their signals. After 20 rounds it is
more than 80 %, with the same base: the adapters are 6,144 of its 77,508 weights.
"""

import numpy as np
import torch
from torch import nn


def record(rng, count, drift=0.0, noise=0.1):
    """Return signals, 16 pieces of 4 values each, and their shapes: sine, square, sawtooth or triangle."""
    time, shape = np.arange(64) / 64, rng.integers(0, 4, count)
    turn = (rng.uniform(2, 6, (count, 1)) * time + rng.random((count, 1))) % 1
    shapes = np.stack([np.sin(2 * np.pi * turn), np.sign(turn - 0.5), 2 * turn - 1, abs(4 * turn - 2) - 1])
    signals = shapes[shape, np.arange(count)] + drift * time + rng.normal(0, noise, (count, 64))
    return torch.tensor(signals.reshape(count, 16, 4), dtype=torch.float32), torch.tensor(shape)


def data():
    """Return one dataset a device. Each sensor has a drift of its own, and more noise than in the laboratory."""
    rng = np.random.default_rng(1)
    return {f"sensor-{device}": record(rng, 80, drift=rng.uniform(1, 3), noise=0.3) for device in range(10)}


class Lora(nn.Linear):
    """A linear layer of the base plus an adapter: the product of two thin matrices, zero at first (Hu et al. 2021)."""

    def __init__(self, inside, outside, rank=4):
        super().__init__(inside, outside)
        self.down = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        self.up = nn.Parameter(torch.zeros(outside, rank))

    def forward(self, x):
        return super().forward(x) + x @ self.down.t() @ self.up.t()


class Block(nn.Module):
    """Attention with four heads, and two layers."""

    def __init__(self):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(64), Lora(64, 192), Lora(64, 64)
        self.layers = nn.Sequential(nn.LayerNorm(64), Lora(64, 128), nn.GELU(), Lora(128, 64))

    def forward(self, x):
        heads = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.into(self.norm(x)).chunk(3, -1))
        x = x + self.out(nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.layers(x)


def model():
    """Return the transformer. If your base is in a file, load it here in place of training it."""
    network = nn.Sequential(nn.Linear(4, 64), Block(), Block(), nn.Flatten(), nn.Linear(1024, 4))
    base = [weight for name, weight in network.named_parameters() if not name.endswith(("down", "up"))]
    optimizer, rng = torch.optim.AdamW(base, lr=0.003), np.random.default_rng(0)
    for signals, shapes in (record(rng, 32) for _ in range(100)):
        nn.functional.cross_entropy(network(signals), shapes).backward()
        optimizer.step()
        network.zero_grad()
    nn.ParameterList(base).requires_grad_(False)
    return network


experiment = {"local_optimizer": "adamw", "lr": 0.003, "rounds": 20, "batch_size": 8, "epochs": 3}
