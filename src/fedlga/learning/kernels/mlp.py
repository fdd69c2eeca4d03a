"""SGD on a network of one hidden layer, compiled from mlp.c: a whole assignment in one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from fedlga.core.kernels.compiler import load_library
from fedlga.learning.torch_private import has_forward_hooks

if TYPE_CHECKING:
    from fedlga.core.types import Assignment, Local, Vector
    from fedlga.learning.examples import TensorExamples
    from fedlga.learning.flat_model import FlatModel

_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


@dataclass(frozen=True)
class FusedMLP:
    """SGD on a network of one hidden layer: the numbers of `training.run_sgd`, with sums in another order."""

    inputs: int
    hidden: int
    classes: int

    @classmethod
    def for_model(cls, model: FlatModel, examples: TensorExamples) -> FusedMLP | None:
        """Return the kernel for a model, if it is Flatten, Linear, ReLU, Linear and the sizes and data are right."""
        inputs: Any = examples.inputs
        labels: Any = examples.targets()
        if not isinstance(inputs, torch.Tensor) or not isinstance(labels, torch.Tensor):
            return None
        if inputs.dtype != torch.float32 or labels.dtype != torch.int64 or labels.dim() != 1:
            return None
        if any(t.device.type != "cpu" for t in (inputs, labels, model.vector)) or not inputs.is_contiguous():
            return None
        # A subclass or a hook may do anything in between; a layer used twice would be a child only once.
        layers = list(model.module) if type(model.module) is nn.Sequential else []
        if any(has_forward_hooks(part) for part in [model.module, *layers]):
            return None
        if [type(layer) for layer in layers] != [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]:
            return None
        first, second = layers[1], layers[3]
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        weights = [*first.parameters(), *second.parameters()]
        plain = first.bias is not None and second.bias is not None and all(p.requires_grad for p in weights)  # pyright: ignore[reportUnnecessaryComparison]
        plain = plain and all(p.dtype == torch.float32 for p in weights)
        sizes = first.in_features % 16 == 0 and first.out_features % 8 == 0
        if not plain or not sizes or model.criterion is not functional.cross_entropy or load_function() is None:
            return None
        return cls(first.in_features, first.out_features, second.out_features)

    def train(
        self,
        assignment: Assignment,
        local: Local,
        images: torch.Tensor,
        labels: torch.Tensor,
        batches: Sequence[torch.Tensor],
    ) -> tuple[Vector, int, float]:
        """Return delta, the steps done and the mean loss. `batches` are rows of the images."""
        train = load_function()
        assert train is not None
        if not batches:
            return torch.zeros_like(assignment.w), 0, 0.0
        w = assignment.w.clone()
        order = torch.cat(list(batches))
        ends = torch.tensor([len(batch) for batch in batches], device="cpu").cumsum(0)
        velocity = torch.zeros_like(w) if assignment.momentum else None
        vectors = (w, images, labels, order, ends)
        assert all(v.is_contiguous() for v in vectors)
        sizes = (len(batches), self.inputs, self.hidden, self.classes)
        rates = (assignment.lr, assignment.momentum, local.pull)
        assert images.dtype == w.dtype == torch.float32
        assert labels.dtype == order.dtype == torch.int64
        constant = None if local.constant is None else local.constant.to(w.dtype).expand_as(w).contiguous()
        also = (assignment.w, constant, velocity)
        loss = train(*map(_address, vectors), *sizes, *rates, *map(_address, also))
        if loss == -1:
            raise MemoryError("no memory for a batch")
        return w.sub_(assignment.w), len(batches), loss


def _address(vector: Vector | None) -> int | None:
    return None if vector is None else vector.data_ptr()


@cache
def load_function() -> Any | None:
    """Return the function `train` of mlp.c; None if it cannot be compiled here."""
    library = load_library(Path(__file__).with_name("mlp.c"))
    if library is None:
        return None
    library.train.argtypes = [_POINTER] * 5 + [_COUNT] * 4 + [_NUMBER] * 3 + [_POINTER] * 3
    library.train.restype = ctypes.c_double
    return library.train
