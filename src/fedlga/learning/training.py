"""The devices: their data, and the only SGD loop. Every method trains through it, on every backend."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from .data.augment import crop_and_flip, resized
from .draws import Stream, generator, torch_seed
from .kernels import FusedMLP
from .settings import BadInput
from .types import Local, Task, Update

if TYPE_CHECKING:
    import numpy as np

    from .methods.base import Method
    from .models import FlatModel
    from .types import Array, Memory, Vector


@dataclass(frozen=True)
class Devices:
    """All devices of a simulated federation; `parts[i]` are the rows of the shared data that device i holds."""

    method: Method
    model: FlatModel
    images: torch.Tensor
    labels: torch.Tensor
    parts: Sequence[Array]
    batch_size: int
    augment: bool = False
    resize: int = 0
    clip: float = 0.0
    fast: bool = True  # compiled code for the models it serves
    pace: float = 0.0  # seconds that a step takes at least: to try out slow devices on a fast machine

    def work(self, task: Task, memory: Memory) -> tuple[Update, Memory]:
        """Do one task. Returns the update, and what the device remembers from now on."""
        local = self.method.local(task, memory)
        delta, steps, train_loss = self.train(task, local)
        truth = None
        if task.audit and steps < task.steps_asked:
            # What the device would have sent: the same work from the start, on the same batches, to its end.
            truth = self.train(replace(task, steps=task.steps_asked), local)[0]
        upload, keep = self.method.finish(task, delta, steps, memory) if steps else (self._nothing(delta), memory)
        self._check(upload, delta)
        update = Update(
            device=task.device,
            delta=delta,
            examples=len(self.parts[task.device]),
            steps=steps,
            steps_asked=task.steps_asked,
            train_loss=train_loss,
            extra=upload,
            lr=task.lr,
            momentum=task.momentum,
            truth=truth,
        )
        return update, keep

    def train(self, task: Task, local: Local) -> tuple[Vector, int, float]:
        """The local SGD of a task: delta, the steps done and the mean loss."""
        timed = task.seconds is not None or self.pace > 0
        if self.kernel is not None and not timed:
            return self.kernel.sgd(task, local, self.images, self.labels, list(self.rows(task, self.draws(task))))
        with torch.random.fork_rng(devices=[]):  # so that layers with draws of their own repeat on every backend
            torch.manual_seed(torch_seed(task.seed, Stream.LAYERS, task.round, task.device))
            batches = self.batches(task)
            if timed:
                batches = in_time(batches, math.inf if task.seconds is None else task.seconds, self.pace)
            return sgd(self.model, task, local, batches, clip=self.clip)

    def _check(self, upload: Memory, delta: Vector) -> None:
        """Every backend carries vectors as long as the model, and nothing else."""
        names = set(self.method.uploads)
        alike = all(v.shape == delta.shape and v.dtype == delta.dtype for v in upload.values())
        if set(upload) != names or not alike:
            got = ", ".join(f"{k} of {tuple(v.shape)} {v.dtype}" for k, v in upload.items()) or "nothing"
            wanted = ", ".join(sorted(names)) or "nothing"
            raise BadInput(f"method: finish uploads {got}; it takes {wanted}, of {tuple(delta.shape)} {delta.dtype}")

    def _nothing(self, delta: Vector) -> Memory:
        """What a device uploads that did not get to a single step."""
        return {name: torch.zeros_like(delta) for name in self.method.uploads}

    @cached_property
    def kernel(self) -> FusedMLP | None:
        """Compiled code for this model, if there is some and it can do all that is asked for."""
        plain = not (self.augment or self.resize or self.clip)
        return FusedMLP.fitting(self.model) if self.fast and plain else None

    def batches(self, task: Task) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Images and labels, a batch a step, as the model gets them."""
        rng = self.draws(task)
        for rows in self.rows(task, rng):
            images = self.images.index_select(0, rows)
            images = crop_and_flip(images, rng) if self.augment else images
            yield resized(images, self.resize), self.labels.index_select(0, rows)

    def draws(self, task: Task) -> np.random.Generator:
        """What a task's batches are drawn with: the same whatever the method."""
        return generator(task.seed, Stream.BATCHES, task.round, task.device)

    def rows(self, task: Task, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        """Which rows of the data make up each batch: shuffle the device's data, cut it into batches, shuffle again.

        However far a device gets, it sees the beginning of the same stream.
        """

        def endless() -> Iterator[torch.Tensor]:
            while True:
                order = torch.from_numpy(rng.permutation(self.parts[task.device]))
                yield from order[: task.steps * self.batch_size].split(self.batch_size)

        return islice(endless(), task.steps)


def in_time(
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]], seconds: float, pace: float
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches for as long as there is time, one every `pace` seconds at most. A step that was begun is finished."""
    started = time.monotonic()
    for count, batch in enumerate(batches, start=1):
        if pace:
            time.sleep(max(0.0, min(started + count * pace, started + seconds) - time.monotonic()))
        if time.monotonic() - started >= seconds:
            return
        yield batch


def sgd(
    model: FlatModel,
    task: Task,
    local: Local,
    batches: Iterator[tuple[torch.Tensor, torch.Tensor]],
    *,
    clip: float = 0.0,
) -> tuple[Vector, int, float]:
    """SGD, a step a batch, with gradient + constant + pull * (w_local - w_sent).

    Returns delta, the steps done and the mean loss. Momentum starts at zero each time: nothing of the optimiser
    outlives the round.
    """
    w, gradient = model.vector, model.gradient
    w.copy_(task.w)
    plain = not (local.pull or clip or task.momentum) and local.constant is None
    velocity = torch.zeros_like(w) if task.momentum else None
    moved = torch.empty_like(w) if local.pull else None
    losses: list[torch.Tensor] = []
    for images, labels in batches:
        loss = model.criterion(model.module(images), labels)
        pieces = gradients(loss, model.parameters)
        losses.append(loss.detach())
        if plain:  # nothing else looks at the gradient: spare gathering it
            torch._foreach_add_(model.weights, pieces, alpha=-task.lr)  # pyright: ignore
            continue
        torch._foreach_copy_(model.gradients, pieces)  # pyright: ignore
        if local.constant is not None:
            gradient.add_(local.constant)
        if moved is not None:
            gradient.add_(torch.sub(w, task.w, out=moved), alpha=local.pull)
        if clip:
            norm = math.sqrt(float(torch.dot(gradient, gradient)))
            gradient.mul_(min(1.0, clip / (norm + 1e-6)))
        step = gradient if velocity is None else velocity.mul_(task.momentum).add_(gradient)
        w.add_(step, alpha=-task.lr)
    return w - task.w, len(losses), torch.stack(losses).mean().item() if losses else 0.0


_ONE = torch.ones(())


def gradients(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """torch.autograd.grad of a scalar, without its checks: of a small model's step they are a tenth.

    Zeros for what the loss does not depend on.
    """
    run: Any = torch.autograd.Variable._execution_engine.run_backward  # pyright: ignore
    options = {"allow_unreachable": True, "accumulate_grad": False}
    found = run((loss,), (_ONE,), False, False, tuple(parameters), **options)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def steps_in_epoch(examples: int, batch_size: int, steps_per_epoch: int) -> int:
    """SGD steps in one unit of local work: a fixed number, or (0) one pass over the device's data."""
    return steps_per_epoch or -(-examples // batch_size)
