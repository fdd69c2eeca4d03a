"""Training on a device: the only SGD loop. Every method trains through it, on every backend."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import torch

from fedlga.core.method import Method
from fedlga.core.randomness import Stream, generator, torch_seed
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment, Local, Update
from fedlga.learning.augment import crop_and_flip, resize_images
from fedlga.learning.kernels.mlp import FusedMLP
from fedlga.learning.torch_private import add_scaled, compute_gradients, copy_each

if TYPE_CHECKING:
    import numpy as np

    from fedlga.core.types import Array, Memory, Vector
    from fedlga.learning.models import FlatModel

    Batch = tuple[torch.Tensor, torch.Tensor]  # images and labels


@dataclass(frozen=True)
class TrainingOptions:
    """How devices train, the same for all of them: plain values that can be sent to another process."""

    batch_size: int
    augment: bool = False
    resize: int = 0
    clip: float = 0.0
    fast: bool = True  # use compiled code for the models it serves


@dataclass(frozen=True)
class TrainingResult:
    """What local training gives."""

    delta: Vector  # w_local - w_sent
    steps: int
    loss: float  # mean over the steps


@dataclass(frozen=True)
class Devices:
    """All devices of a federation that are here; `parts[i]` are the rows of the data that device i holds."""

    method: Method
    model: FlatModel
    images: torch.Tensor
    labels: torch.Tensor
    parts: Sequence[Array]
    options: TrainingOptions
    pace: float = 0.0  # seconds that a step takes at least: to try out slow devices on a fast machine

    def perform(self, assignment: Assignment, memory: Memory) -> tuple[Update, Memory]:
        """Carry out an assignment. Return the update, and what the device remembers from now on."""
        local = self.method.local(assignment, memory)
        result = self.train(assignment, local)
        truth = None
        if assignment.audit and result.steps < assignment.steps_asked:
            # What the device would have sent: the same work from the start, on the same batches, to its end.
            truth = self.train(replace(assignment, steps=assignment.steps_asked), local).delta
        uploads, remembered = self._finish(assignment, result, memory)
        update = Update(
            device=assignment.device,
            delta=result.delta,
            examples=len(self.parts[assignment.device]),
            steps=result.steps,
            steps_asked=assignment.steps_asked,
            train_loss=result.loss,
            uploads=uploads,
            lr=assignment.lr,
            momentum=assignment.momentum,
            truth=truth,
        )
        return update, remembered

    def _finish(self, assignment: Assignment, result: TrainingResult, memory: Memory) -> tuple[Memory, Memory]:
        """Let the method make its uploads; a device without a single step uploads zeros and remembers what it did."""
        delta = result.delta
        if result.steps == 0:
            return {name: torch.zeros_like(delta) for name in self.method.uploads}, memory
        uploads, remembered = self.method.finish(assignment, delta, result.steps, memory)
        # Every backend carries vectors as long as the model, and nothing else.
        alike = all(v.shape == delta.shape and v.dtype == delta.dtype for v in uploads.values())
        if set(uploads) != set(self.method.uploads) or not alike:
            got = ", ".join(f"{k} of {tuple(v.shape)} {v.dtype}" for k, v in uploads.items()) or "nothing"
            wanted = ", ".join(sorted(self.method.uploads)) or "nothing"
            raise BadInput(f"method: finish uploads {got}; it takes {wanted}, of {tuple(delta.shape)} {delta.dtype}")
        return uploads, remembered

    def train(self, assignment: Assignment, local: Local) -> TrainingResult:
        """Do the local SGD of an assignment."""
        timed = assignment.seconds is not None or self.pace > 0
        if self.kernel is not None and not timed:
            rows = list(self.rows(assignment, self.batch_generator(assignment)))
            return TrainingResult(*self.kernel.train(assignment, local, self.images, self.labels, rows))
        with torch.random.fork_rng(devices=[]):  # so that layers with draws of their own repeat on every backend
            torch.manual_seed(torch_seed(assignment.seed, Stream.LAYERS, assignment.round, assignment.device))
            batches = self.batches(assignment)
            if timed:
                seconds = math.inf if assignment.seconds is None else assignment.seconds
                batches = limit_time(batches, seconds, self.pace)
            return run_sgd(self.model, assignment, local, batches, clip=self.options.clip)

    @cached_property
    def kernel(self) -> FusedMLP | None:
        """Compiled code for this model, if there is some and it can do all that is asked for."""
        plain = not (self.options.augment or self.options.resize or self.options.clip)
        return FusedMLP.for_model(self.model) if self.options.fast and plain else None

    def batches(self, assignment: Assignment) -> Iterator[Batch]:
        """Yield images and labels, a batch a step, as the model gets them."""
        rng = self.batch_generator(assignment)
        for rows in self.rows(assignment, rng):
            images = self.images.index_select(0, rows)
            images = crop_and_flip(images, rng) if self.options.augment else images
            yield resize_images(images, self.options.resize), self.labels.index_select(0, rows)

    def batch_generator(self, assignment: Assignment) -> np.random.Generator:
        """Return the generator of an assignment's batches: the same for every method."""
        return generator(assignment.seed, Stream.BATCHES, assignment.round, assignment.device)

    def rows(self, assignment: Assignment, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        """Yield the rows of each batch: shuffle the device's data, cut it into batches, shuffle again.

        However far a device gets, it sees the beginning of the same stream.
        """
        size = self.options.batch_size

        def endless() -> Iterator[torch.Tensor]:
            while True:
                order = torch.from_numpy(rng.permutation(self.parts[assignment.device]))
                yield from order[: assignment.steps * size].split(size)

        return islice(endless(), assignment.steps)


def limit_time(batches: Iterator[Batch], seconds: float, pace: float) -> Iterator[Batch]:
    """Yield batches until the time is up, one every `pace` seconds at most. A step that was begun is finished."""
    started = time.monotonic()
    for count, batch in enumerate(batches, start=1):
        if pace:
            time.sleep(max(0.0, min(started + count * pace, started + seconds) - time.monotonic()))
        if time.monotonic() - started >= seconds:
            return
        yield batch


def run_sgd(
    model: FlatModel, assignment: Assignment, local: Local, batches: Iterator[Batch], *, clip: float = 0.0
) -> TrainingResult:
    """Run SGD, a step a batch, with gradient + constant + pull * (w_local - w_sent).

    Momentum starts at zero each time: nothing of the optimiser outlives the round.
    """
    w, gradient, lr = model.vector, model.gradient, assignment.lr
    w.copy_(assignment.w)
    plain = not (clip or assignment.momentum or local.pull) and local.constant is None
    velocity = torch.zeros_like(w) if assignment.momentum else None
    scratch = torch.empty_like(w) if local.pull else None
    losses: list[torch.Tensor] = []
    for images, labels in batches:
        loss = model.criterion(model.module(images), labels)
        pieces = compute_gradients(loss, model.parameters)
        losses.append(loss.detach())
        if plain:  # nothing else needs the gradient as one vector
            add_scaled(model.weights, pieces, -lr)
            continue
        copy_each(model.gradients, pieces)
        add_local_terms(gradient, local.constant, local.pull, w, assignment.w, scratch)
        if clip:
            norm = math.sqrt(float(torch.dot(gradient, gradient)))
            gradient.mul_(min(1.0, clip / (norm + 1e-6)))
        step = gradient if velocity is None else velocity.mul_(assignment.momentum).add_(gradient)
        w.add_(step, alpha=-lr)
    return TrainingResult(w - assignment.w, len(losses), torch.stack(losses).mean().item() if losses else 0.0)


def add_local_terms(
    gradient: torch.Tensor,
    constant: torch.Tensor | None,
    pull: float,
    w: torch.Tensor,
    w_sent: torch.Tensor,
    scratch: torch.Tensor | None = None,
) -> None:
    """Add constant + pull * (w - w_sent) to a gradient, or to a piece of it, in place."""
    if constant is not None:
        gradient.add_(constant)
    if pull:
        gradient.add_(torch.sub(w, w_sent, out=scratch), alpha=pull)


def steps_in_epoch(examples: int, batch_size: int, steps_per_epoch: int) -> int:
    """Return the SGD steps in one unit of local work: a fixed number, or (0) one pass over the device's data."""
    return steps_per_epoch or -(-examples // batch_size)
