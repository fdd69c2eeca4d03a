"""A model as one flat vector: what the whole federation moves, sends and averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional

from fedlga.learning.trees import Tree

if TYPE_CHECKING:
    from fedlga.core.types import Vector

Criterion = Callable[[Any, Any], torch.Tensor]  # outputs and targets -> the mean loss of a batch
IMAGE = 4  # dimensions of a batch of images, and of the kernels that take one
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FlatModel:
    """A module whose trainable parameters are views of one vector, and their gradients of another.

    `criterion` turns its outputs and the targets into the loss. The kernels of 2-d convolutions are stored with
    channels last, so that torch computes in that layout: half the time of a step, a third of an evaluation. The vector
    is float32; a parameter of lower precision is a rounded copy of its piece, and its gradients are added to the piece.
    """

    def __init__(
        self,
        module: nn.Module,
        criterion: Criterion = functional.cross_entropy,
        *,
        channels_last: bool = True,
        changing: Sequence[str] = (),
        needs_pairs: bool = False,
    ) -> None:
        """`changing` are the names of the buffers that training changes.

        `needs_pairs`: it cannot train on a batch of one example.
        """
        self.module, self.needs_pairs = module, needs_pairs
        self.criterion = criterion
        self.parameters = parameters = [p for p in module.parameters() if p.requires_grad]
        self.weights: list[torch.Tensor] = []  # the parameters, as pieces of `vector`
        self.gradients: list[torch.Tensor] = []  # the same pieces of `gradient`
        self._rounded: list[tuple[nn.Parameter, torch.Tensor]] = []  # of lower precision, and their pieces
        flatten, shape = (
            (_channels_last, _shape_piece) if channels_last else (torch.Tensor.contiguous, torch.Tensor.view_as)
        )
        self.vector: Vector = torch.cat([flatten(p.detach()).reshape(-1).float() for p in parameters])
        self.gradient: Vector = torch.zeros_like(self.vector)
        self.pieces: dict[nn.Parameter, slice] = {}  # where each parameter is in the vector
        start = 0
        for p in parameters:
            end = start + p.numel()
            self.weights.append(shape(self.vector[start:end], p))
            self.gradients.append(shape(self.gradient[start:end], p))
            if p.dtype == torch.float32:
                p.data, p.grad = self.weights[-1], self.gradients[-1]
            else:
                self._rounded.append((p, self.weights[-1]))
            self.pieces[p] = slice(start, end)
            start = end
        buffers = dict(module.named_buffers())
        self._averaged = [name for name in changing if buffers[name].is_floating_point()]
        self._counters = {name: buffers[name].clone() for name in changing if name not in self._averaged}

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.vector.device

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions: their outputs are much larger than the images."""
        return any(p.dim() == IMAGE for p in self.module.parameters())

    @property
    def normalises_batches(self) -> bool:
        """Whether it has BatchNorm."""
        return any(isinstance(layer, BATCH_NORMS) for layer in self.module.modules())

    @property
    def has_changing_buffers(self) -> bool:
        """Whether training changes some of its buffers."""
        return bool(self._averaged or self._counters)

    def batch_norm_pieces(self) -> list[slice]:
        """Return where the weights and biases of BatchNorm are in the vector."""
        layers = [layer for layer in self.module.modules() if isinstance(layer, BATCH_NORMS)]
        return [self.pieces[p] for layer in layers for p in layer.parameters() if p in self.pieces]

    def call(self, inputs: Tree) -> Any:
        """Return the outputs: a tuple of inputs is spread over the module's arguments, a dict by their names."""
        return call_module(self.module, inputs)

    def load(self, w: Vector, buffers: Vector | None = None) -> None:
        """Take these weights and buffers; counters among the buffers begin again."""
        self.vector.copy_(w)
        self.round_weights()
        if not self._averaged and not self._counters:
            return
        own = dict(self.module.named_buffers())
        for name, value in self._counters.items():
            own[name].copy_(value)
        start = 0
        for name in self._averaged if buffers is not None else ():
            end = start + own[name].numel()
            own[name].copy_(cast("Vector", buffers)[start:end].view_as(own[name]))
            start = end

    def round_weights(self) -> None:
        """Copy the vector into the parameters of lower precision, after it was changed."""
        for parameter, piece in self._rounded:
            parameter.data.copy_(piece)

    def read_buffers(self) -> Vector | None:
        """Return the buffers that training changes as one vector; None if there are none. Counters are left out."""
        if not self._averaged:
            return None
        own = dict(self.module.named_buffers())
        return torch.cat([own[name].detach().reshape(-1).float() for name in self._averaged])


def call_module(module: nn.Module, inputs: Tree) -> Any:
    """Return a module's outputs: a tuple of inputs is spread over its arguments, a dict by their names."""
    if isinstance(inputs, Mapping):
        return module(**cast("Mapping[str, Any]", inputs))
    if isinstance(inputs, list | tuple):
        return module(*cast("Sequence[Any]", inputs))
    return module(inputs)


def _channels_last(parameter: torch.Tensor) -> torch.Tensor:
    return parameter.permute(0, 2, 3, 1) if parameter.dim() == IMAGE else parameter


def _shape_piece(flat: Vector, like: torch.Tensor) -> torch.Tensor:
    """Return a piece of the vector as the parameter it holds."""
    if like.dim() != IMAGE:
        return flat.view_as(like)
    return flat.view(_channels_last(like).shape).permute(0, 3, 1, 2)
