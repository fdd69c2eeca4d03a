"""What a federation minimises: f, the mean of the devices' losses on all their training data, and its derivatives.

Nothing is drawn here. Models compute as in an evaluation: dropout is off, BatchNorm uses its running statistics, and
images are not augmented.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlga.learning.examples import Examples, move_batch
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.problem import resize_batch
from fedlga.learning.torch_private import compute_gradients, copy_each
from fedlga.learning.training import compute_loss

if TYPE_CHECKING:
    from fedlga.core.types import Array, Vector
    from fedlga.learning.examples import Batch
    from fedlga.learning.training import Devices

CHUNK = 1000  # examples whose loss is computed at a time
SMALL_CHUNK = 100  # of models with convolutions, whose intermediate results are much larger than their inputs


@dataclass(frozen=True)
class Objective:
    """f(w) = the sum of weights[i] * F_i(w). F_i is the mean loss over the rows `parts[i]` of the examples.

    All methods but `at` are about the weights that `at` put into the model.
    """

    model: FlatModel
    examples: Examples
    parts: Sequence[Array]
    weights: Sequence[float]  # of the devices; they sum to 1
    resize: int = 0
    decay: float = 0.0  # weight decay, which adds decay / 2 |w|^2 to every F_i

    @classmethod
    def of(cls, devices: Devices, *, by_examples: bool = False) -> Objective:
        """Return what these devices minimise together: averaged uniformly, or by examples."""
        sizes = np.array([len(part) for part in devices.parts], float)
        shares = sizes / sizes.sum() if by_examples else np.full(len(sizes), 1 / len(sizes))
        options = devices.options
        decay = options.weight_decay if options.optimizer == "sgd" else 0.0
        return cls(devices.model, devices.examples, devices.parts, shares.tolist(), options.resize, decay)

    @contextmanager
    def at(self, w: Vector, buffers: Vector | None = None) -> Generator[None]:
        """Put these weights and buffers into the model, for as long as the `with` lasts."""
        self.model.load(w, buffers)
        self.model.module.eval()
        try:
            yield
        finally:
            self.model.module.train()

    def measure_loss(self, w: Vector, buffers: Vector | None = None) -> tuple[float, None]:
        """Return f(w), and nothing about its gradient: a third of the work."""
        value = 0.5 * self.decay * float(w.square().sum())
        with self.at(w, buffers), torch.no_grad():
            for device, weight in enumerate(self.weights):
                if weight:
                    batches = self._batches(self.parts[device])
                    value += weight * sum(share * compute_loss(self.model, *batch).item() for batch, share in batches)
        return value, None

    def measure(self, w: Vector, buffers: Vector | None = None) -> tuple[float, float]:
        """Return f(w) and |grad f(w)|^2."""
        total, value = torch.zeros_like(self.model.vector), 0.0
        with self.at(w, buffers):
            for device, weight in enumerate(self.weights):
                if weight:
                    loss, gradient = self.gradient_of(self.parts[device])
                    total.add_(gradient, alpha=weight)
                    value += weight * loss
        return value, float(torch.dot(total, total))

    def gradient_of(self, rows: Array) -> tuple[float, Vector]:
        """Return the mean loss of these rows, and its gradient."""
        total, value = self.decay * self.model.vector, 0.5 * self.decay * float(self.model.vector.square().sum())
        for batch, share in self._batches(rows):
            loss = compute_loss(self.model, *batch)
            copy_each(self.model.gradients, compute_gradients(loss, self.model.parameters))
            total.add_(self.model.gradient, alpha=share)
            value += share * loss.item()
        return value, total

    def multiply_hessian(self, rows: Array, direction: Vector) -> Vector:
        """Return the Hessian of the mean loss of these rows, times a direction."""
        total = self.decay * direction
        for batch, share in self._batches(rows):
            self.model.gradient.copy_(direction)
            along = [piece.clone() for piece in self.model.gradients]
            loss = compute_loss(self.model, *batch)
            first = torch.autograd.grad(
                loss, self.model.parameters, create_graph=True, allow_unused=True, materialize_grads=True
            )
            slope = torch.stack([(g * v).sum() for g, v in zip(first, along, strict=True)]).sum()
            if slope.requires_grad:  # a loss that is linear in the weights has no curvature
                copy_each(self.model.gradients, compute_gradients(slope, self.model.parameters))
                total.add_(self.model.gradient, alpha=share)
        return total

    def _batches(self, rows: Array) -> Iterator[tuple[Batch, float]]:
        """Yield the rows' examples, some at a time, with their share of all."""
        chosen = torch.from_numpy(np.asarray(rows, np.int64)).to(self.examples.device)
        size = SMALL_CHUNK if self.model.convolves else CHUNK
        for start in range(0, len(chosen), size):
            some = chosen[start : start + size]
            batch = move_batch(self.examples.batch(some), self.model.device)
            yield resize_batch(batch, self.resize), len(some) / len(chosen)
