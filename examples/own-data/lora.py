"""LoRA: fine-tune a frozen transformer. Only the small adapters and the new head train, and only they are sent.

fedlga run lora.py
"""

import torch
from next_character import SYMBOLS, data  # noqa: F401  (the task's data)
from torch import nn
from torch.nn.functional import scaled_dot_product_attention


class Lora(nn.Module):
    """A frozen linear layer, plus the product of two thin matrices that train (Hu et al. 2021)."""

    def __init__(self, inside, outside, rank=4):
        super().__init__()
        self.frozen = nn.Linear(inside, outside).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        self.up = nn.Parameter(torch.zeros(outside, rank))

    def forward(self, x):
        return self.frozen(x) + x @ self.down.t() @ self.up.t()


class Block(nn.Module):
    """Causal attention with four heads, and two layers."""

    def __init__(self):
        super().__init__()
        self.norm, self.into, self.out = nn.LayerNorm(64), Lora(64, 192), Lora(64, 64)
        self.layers = nn.Sequential(nn.LayerNorm(64), Lora(64, 128), nn.GELU(), nn.Dropout(0.1), Lora(128, 64))

    def forward(self, x):
        heads = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.into(self.norm(x)).chunk(3, -1))
        x = x + self.out(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.layers(x)


def model():
    """Return the transformer. Load the trained weights of the frozen parts here: they are never sent."""
    embed = nn.Embedding(SYMBOLS, 64).requires_grad_(False)
    return nn.Sequential(embed, Block(), Block(), nn.Linear(64, SYMBOLS))


experiment = {"local_optimizer": "adamw", "lr": 0.003, "rounds": 20, "batch_size": 8, "epochs": 3}
