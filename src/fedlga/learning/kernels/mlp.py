"""SGD on a network of one hidden layer, compiled: a whole task in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from .built import library

if TYPE_CHECKING:
    from ..models import FlatModel
    from ..types import Local, Task, Vector

_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


@dataclass(frozen=True)
class FusedMLP:
    """SGD on a network of one hidden layer; the numbers of sgd() in local.py, but for the order of their sums."""

    inputs: int
    hidden: int
    classes: int

    @classmethod
    def fitting(cls, model: FlatModel) -> FusedMLP | None:
        """The kernel for a model, if it is one of Flatten, Linear, ReLU, Linear and the sizes are right."""
        # A subclass or a hook may do anything in between; a layer used twice would be a child only once.
        layers = list(model.module) if type(model.module) is nn.Sequential else []
        if any(vars(part)["_forward_hooks"] or vars(part)["_forward_pre_hooks"] for part in [model.module, *layers]):
            return None
        if [type(layer) for layer in layers] != [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]:
            return None
        first, second = layers[1], layers[3]
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        wanted = [*first.parameters(), *second.parameters()]
        plain = first.bias is not None and second.bias is not None and all(p.requires_grad for p in wanted)  # pyright: ignore[reportUnnecessaryComparison]
        sizes = first.in_features % 16 == 0 and first.out_features % 8 == 0
        if not plain or not sizes or model.criterion is not functional.cross_entropy or compiled() is None:
            return None
        return cls(first.in_features, first.out_features, second.out_features)

    def sgd(
        self, task: Task, local: Local, images: torch.Tensor, labels: torch.Tensor, batches: Sequence[torch.Tensor]
    ) -> tuple[Vector, int, float]:
        """What sgd() in local.py returns: delta, the steps done and the mean loss. `batches` are rows of the images."""
        train = compiled()
        assert train is not None
        if not batches:
            return torch.zeros_like(task.w), 0, 0.0
        w = task.w.clone()
        order = torch.cat(list(batches))
        ends = torch.tensor([len(batch) for batch in batches]).cumsum(0)
        velocity = torch.zeros_like(w) if task.momentum else None
        vectors = (w, images, labels, order, ends)
        assert all(v.is_contiguous() for v in vectors)
        sizes = (len(batches), self.inputs, self.hidden, self.classes)
        rates = (task.lr, task.momentum, local.pull)
        assert images.dtype == w.dtype == torch.float32
        assert labels.dtype == order.dtype == torch.int64
        constant = None if local.constant is None else local.constant.to(w.dtype).expand_as(w).contiguous()
        also = (task.w, constant, velocity)
        loss = train(*map(_address, vectors), *sizes, *rates, *map(_address, also))
        if loss == -1:
            raise MemoryError("no memory for a batch")
        return w.sub_(task.w), len(batches), loss


def _address(vector: Vector | None) -> int | None:
    return None if vector is None else vector.data_ptr()


@cache
def compiled() -> Any | None:
    """The function `train` of mlp.c; None where it cannot be had."""
    built = library("mlp")
    if built is None:
        return None
    built.train.argtypes = [_POINTER] * 5 + [_COUNT] * 4 + [_NUMBER] * 3 + [_POINTER] * 3
    built.train.restype = ctypes.c_double
    return built.train
