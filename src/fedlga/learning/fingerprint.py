"""What two processes must have in common: the model's starting weights, and some of the examples."""

from __future__ import annotations

import hashlib

import torch

from fedlga.learning.examples import Examples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.trees import leaves_of


def take_fingerprint(model: FlatModel, *sets: Examples) -> str:
    """Return a hash of all weights and buffers, frozen ones included, and of the first and last example of each set."""
    digest = hashlib.sha256()
    for name, value in sorted(model.module.state_dict().items()):
        digest.update(name.encode() + _bytes(value))
    for examples in sets:
        digest.update(str(len(examples)).encode())
        for row in (0, len(examples) - 1):
            for tree in examples.piece(row, row + 1):
                for leaf in leaves_of(tree):
                    digest.update(_bytes(leaf))
    return digest.hexdigest()


def _bytes(value: torch.Tensor) -> bytes:
    flat = torch.empty(value.numel(), dtype=value.dtype, device="cpu")  # a slice of one number keeps its stride
    flat.copy_(value.detach().reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes() if value.numel() else b""
