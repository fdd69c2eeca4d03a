"""Training on a device: the only SGD loop. Every method trains through it, on every backend."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlga.core.completion.digest import measure_length
from fedlga.core.completion.private import scale_own
from fedlga.core.method import Method
from fedlga.core.process import seed_generators
from fedlga.core.randomness import Stream, generator, torch_seed
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment, Local, Update
from fedlga.learning.augment import crop_and_flip
from fedlga.learning.compiled_step import CompiledStep
from fedlga.learning.examples import Examples, move_batch
from fedlga.learning.failures import explain_loss, explain_model
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.kernels.mlp import FusedMLP
from fedlga.learning.problem import refuse_ignored, resize_batch, takes_every_label
from fedlga.learning.torch_private import add_scaled, compute_gradients, copy_each

if TYPE_CHECKING:
    from fedlga.core.types import Array, Memory, Vector
    from fedlga.learning.examples import Batch
    from fedlga.learning.trees import Tree

OWN_WEIGHTS, OWN_BUFFERS = "own.weights", "own.buffers"  # in a device's memory: its own BatchNorm


@dataclass(frozen=True)
class TrainingOptions:
    """How devices train, the same for all of them: plain values that can be sent to another process."""

    batch_size: int
    augment: bool = False
    resize: int = 0
    clip: float = 0.0
    fast: bool = True  # use compiled code for the models it serves
    optimizer: str = "sgd"  # or adamw; its state begins anew each round
    weight_decay: float = 0.0
    own_batch_norm: bool = False  # BatchNorm's weights and statistics stay on each device (FedBN)
    label_smoothing: float = 0.0
    compile: bool = False  # compute loss and gradients of whole batches by compiled code


@dataclass(frozen=True)
class TrainingResult:
    """What local training gives."""

    delta: Vector  # w_local - w_sent
    steps: int
    loss: float  # mean over the steps
    buffers: Vector | None = None  # after the last step, if the model has some that training changes


@dataclass(frozen=True)
class Devices:
    """All devices of a federation that are here; `parts[i]` are the rows of the examples that device i holds."""

    method: Method
    model: FlatModel
    examples: Examples
    parts: Sequence[Array]
    options: TrainingOptions
    pace: float = 0.0  # seconds that a step takes at least: to try out slow devices on a fast machine

    def perform(self, assignment: Assignment, memory: Memory) -> tuple[Update, Memory]:
        """Carry out an assignment. Return the update, and what the device remembers from now on."""
        if self.options.own_batch_norm:
            w, buffers = self.personalise(assignment.w, assignment.buffers, memory)
            assignment = replace(assignment, w=w, buffers=buffers)
            memory = {name: vector for name, vector in memory.items() if name not in (OWN_WEIGHTS, OWN_BUFFERS)}
        local = add_weight_decay(self.method.local(assignment, memory), assignment.w, self._coupled_decay)
        result = self.train(assignment, local)
        own: Memory = self._take_own(assignment, result) if self.options.own_batch_norm else {}
        truth = None
        if assignment.audit and result.steps < assignment.steps_asked:
            # What the device would have sent: the same work from the start, on the same batches, to its end.
            full = self.train(replace(assignment, steps=assignment.steps_asked), local)
            if own:
                self._take_own(assignment, full)
            truth = full.delta
        uploads, remembered = self._finish(assignment, result, memory)
        delta, scaled, length = result.delta, 1.0, None
        if assignment.exponent is not None:
            length = measure_length(delta)
            scaled = scale_own(assignment, result.steps, length)
            delta = delta if scaled == 1 else delta * scaled
        update = Update(
            device=assignment.device,
            delta=delta,
            examples=len(self.parts[assignment.device]),
            steps=result.steps,
            steps_asked=assignment.steps_asked,
            train_loss=result.loss,
            uploads=uploads,
            lr=assignment.lr,
            momentum=assignment.momentum,
            buffers=None if own else result.buffers,
            truth=truth,
            scaled=scaled,
            length=length,
        )
        return update, {**remembered, **own}

    def personalise(self, w: Vector, buffers: Vector | None, memory: Memory) -> tuple[Vector, Vector | None]:
        """Return weights and buffers with a device's own BatchNorm in place of the joint one, if it has one yet."""
        if OWN_WEIGHTS not in memory:
            return w, buffers
        w = w.clone()
        start = 0
        for piece in self.model.batch_norm_pieces():
            end = start + piece.stop - piece.start
            w[piece] = memory[OWN_WEIGHTS][start:end]
            start = end
        return w, memory.get(OWN_BUFFERS, buffers)

    def _take_own(self, assignment: Assignment, result: TrainingResult) -> Memory:
        """Return the device's own BatchNorm after training, and take it out of what is sent."""
        pieces = self.model.batch_norm_pieces()
        moved = [result.delta[piece] for piece in pieces]
        none = [result.delta.new_zeros(0)]
        weights = torch.cat([assignment.w[p] + m for p, m in zip(pieces, moved, strict=True)] or none)
        for piece in pieces:
            result.delta[piece] = 0
        return {OWN_WEIGHTS: weights, **({} if result.buffers is None else {OWN_BUFFERS: result.buffers})}

    @property
    def _coupled_decay(self) -> float:
        """The weight decay that is part of the gradient. AdamW's is not: it has its own."""
        return self.options.weight_decay if self.options.optimizer == "sgd" else 0.0

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
            images, labels = self.examples.piece(0, len(self.examples))
            return TrainingResult(*self.kernel.train(assignment, local, images, labels, rows))
        # So that layers and datasets with draws of their own repeat on every backend.
        with seed_generators(torch_seed(assignment.seed, Stream.LAYERS, assignment.round, assignment.device)):
            batches = self.batches(assignment)
            if timed:
                seconds = math.inf if assignment.seconds is None else assignment.seconds
                batches = limit_time(batches, seconds, self.pace)
            return run_sgd(self.model, assignment, local, batches, self.options, self.compiled)

    @cached_property
    def kernel(self) -> FusedMLP | None:
        """Compiled code for this model, if there is some and it can do all that is asked for."""
        o = self.options
        plain = not (o.augment or o.resize or o.clip or o.own_batch_norm) and o.optimizer == "sgd"
        if not o.fast or not plain or self.examples.in_memory is None:
            return None
        return FusedMLP.for_model(self.model, self.examples.in_memory)

    @cached_property
    def compiled(self) -> CompiledStep | None:
        """The compiled step, if it is asked for. It is compared with the plain one on the same batch everywhere."""
        if not self.options.compile or self.kernel is not None:
            return None
        with torch.random.fork_rng(devices=[]):
            return CompiledStep(self.model, self.sample_batch())

    def sample_batch(self) -> Batch:
        """Return a batch of the usual size, evenly from all examples."""
        size = min(self.options.batch_size, len(self.examples))
        rows = torch.from_numpy(np.linspace(0, len(self.examples) - 1, size).astype(np.int64)).to(self.examples.device)
        return resize_batch(move_batch(self.examples.batch(rows), self.model.device), self.options.resize)

    def batches(self, assignment: Assignment) -> Iterator[Batch]:
        """Yield inputs and targets, a batch a step, as the model gets them."""
        rng = self.batch_generator(assignment)
        lazy = self.examples.in_memory is None and takes_every_label(self.model.criterion)
        for rows in self.rows(assignment, rng):
            inputs, targets = move_batch(self.examples.batch(rows), self.model.device)
            if lazy:  # of what is in memory, all labels were looked at before the run
                refuse_ignored(targets)
            if self.options.augment:
                inputs = crop_and_flip(inputs, rng)
            yield resize_batch((inputs, targets), self.options.resize)

    def batch_generator(self, assignment: Assignment) -> np.random.Generator:
        """Return the generator of an assignment's batches: the same for every method."""
        return generator(assignment.seed, Stream.BATCHES, assignment.round, assignment.device)

    def rows(self, assignment: Assignment, rng: np.random.Generator) -> Iterator[torch.Tensor]:
        """Yield the rows of each batch: shuffle the device's data, cut it into batches, shuffle again.

        However far a device gets, it sees the beginning of the same stream. A last batch of one example is left out
        if the model cannot train on it.
        """
        size, part = self.options.batch_size, self.parts[assignment.device]
        whole = len(part) - 1 if self.model.needs_pairs and len(part) % size == 1 else len(part)
        device = self.examples.device

        def endless() -> Iterator[torch.Tensor]:
            while True:
                order = torch.from_numpy(rng.permutation(part)[:whole]).to(device)
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
    model: FlatModel,
    assignment: Assignment,
    local: Local,
    batches: Iterator[Batch],
    options: TrainingOptions,
    compiled: CompiledStep | None = None,
) -> TrainingResult:
    """Train, a step a batch, with gradient + constant + pull * (w_local - w_sent).

    Momentum and AdamW's averages start at zero each time: nothing of the optimiser outlives the round.
    """
    w, gradient, lr = model.vector, model.gradient, assignment.lr
    sent = assignment.w.to(w.device)
    constant = None if local.constant is None else local.constant.to(w.device)
    model.load(sent, assignment.buffers)
    adamw = make_adamw(w, lr, options.weight_decay) if options.optimizer == "adamw" else None
    plain = not (options.clip or assignment.momentum or local.pull or adamw) and constant is None
    velocity = torch.zeros_like(w) if assignment.momentum and adamw is None else None
    scratch = torch.empty_like(w) if local.pull else None
    losses: list[torch.Tensor] = []
    for inputs, targets in batches:
        if compiled is not None and compiled.fits(inputs, targets):
            loss, pieces = compiled.compute(inputs, targets)
        else:
            loss = compute_loss(model, inputs, targets)
            pieces = compute_gradients(loss, model.parameters)
        losses.append(loss.detach())
        if plain:  # nothing else needs the gradient as one vector
            add_scaled(model.weights, pieces, -lr)
            model.round_weights()
            continue
        copy_each(model.gradients, pieces)
        if options.clip:  # the loss's gradient alone: Scaffold's control is then the mean of what it corrects
            norm = math.sqrt(float(torch.dot(gradient, gradient)))
            gradient.mul_(min(1.0, options.clip / (norm + 1e-6)))
        add_local_terms(gradient, constant, local.pull, w, sent, scratch)
        if adamw is not None:
            w.grad = gradient
            adamw.step()
            w.grad = None
        else:
            step = gradient if velocity is None else velocity.mul_(assignment.momentum).add_(gradient)
            w.add_(step, alpha=-lr)
        model.round_weights()
    mean_loss = torch.stack(losses).float().mean().item() if losses else 0.0
    buffers = model.read_buffers()
    delta = (w - sent).to(assignment.w.device)
    return TrainingResult(delta, len(losses), mean_loss, None if buffers is None else buffers.to(delta.device))


def compute_loss(model: FlatModel, inputs: Tree, targets: Tree) -> torch.Tensor:
    """Return the mean loss of a batch; what the task's own model or loss raise becomes one line that names it."""
    try:
        outputs = model.call(inputs)
    except Exception as error:
        raise explain_model(error, inputs) from error
    try:
        return model.criterion(outputs, targets)
    except Exception as error:
        raise explain_loss(error, outputs, targets) from error


def make_adamw(w: Vector, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Return torch's AdamW for the whole model: one vector."""
    return torch.optim.AdamW([w], lr=lr, weight_decay=weight_decay, foreach=False)


def add_weight_decay(local: Local, w_sent: Vector, decay: float) -> Local:
    """Return local terms with decay * w added to every gradient: decay * w_sent + decay * (w_local - w_sent)."""
    if not decay:
        return local
    constant = decay * w_sent if local.constant is None else local.constant + decay * w_sent
    return Local(constant, local.pull + decay)


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
