"""A whole training step as compiled code: loss and gradients in one graph, by torch.compile.

The weights' update stays outside: torch 2.13 compiles `w.add_(a.t() @ b, alpha=c)` without the factor c. A model may
hold such a line itself, so the compiled step is compared with the plain one before it is used.
"""

from __future__ import annotations

import os
import statistics
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedlga.core.settings import BadInput
from fedlga.learning.torch_private import compute_gradients, make_product_pass
from fedlga.learning.trees import Tree, leaves_of

if TYPE_CHECKING:
    from fedlga.learning.examples import Batch
    from fedlga.learning.flat_model import FlatModel

TOLERANCE = 1e-3  # of the compiled gradients, relative to their largest: rounding is a thousand times smaller
WORTH_COMPILING = 120.0  # seconds of training: the compiler takes 8 to 25 of them, and saves a third at best
GAIN = 0.95  # the compiled step is used if it takes at most this share of the plain step's time
TIMED_STEPS = 9


class CompiledStep:
    """Loss and gradients of a batch of one shape; other shapes, such as a last small batch, take the plain way."""

    def __init__(self, model: FlatModel, batch: Batch) -> None:
        """Compile for batches like this one; BadInput if this model cannot be compiled, or comes out wrong."""
        if reason := why_not(model, batch):
            raise BadInput(f"compile: {reason}; it takes off")
        self._model, self._form = model, _form(batch)
        self._run = _compile(model)
        self._weights = list(model.weights)
        try:
            compiled = self.compute(*batch)
        except Exception as error:  # the compiler may raise anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadInput(f"compile: torch cannot compile this model here ({reason[:200]}); it takes off") from error
        if not _agree(compiled, compute_plainly(model, batch)):
            raise BadInput("compile: the compiled step gives other gradients than the plain one; it takes off")

    def fits(self, inputs: Tree, targets: Tree) -> bool:
        """Return whether the code was compiled for batches of this form."""
        return _form((inputs, targets)) == self._form

    def compute(self, inputs: Tree, targets: Tree) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        """Return the loss and a gradient for each of the model's parameters."""
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's compiler, about itself
            return self._run(self._weights, inputs, targets)


def compute_plainly(model: FlatModel, batch: Batch) -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
    """Return the loss and the gradients of a batch by autograd."""
    loss = model.criterion(model.call(batch[0]), batch[1])
    return loss.detach(), compute_gradients(loss, model.parameters)


def why_not(model: FlatModel, batch: Batch) -> str | None:
    """Return why a model cannot be compiled; None if it can be tried."""
    if model.device.type != "cpu":
        return "only models on the CPU are compiled"
    if any(p.dtype != torch.float32 for p in model.parameters):
        return "only float32 models are compiled"
    if any(isinstance(layer, nn.RNNBase) for layer in model.module.modules()):
        return "torch does not compile LSTM, GRU and RNN layers"
    if model.has_changing_buffers:
        return "training changes the model's buffers"
    losses: list[float] = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        for seed in (0, 1):
            torch.manual_seed(seed)
            losses.append(float(model.criterion(model.call(batch[0]), batch[1])))
    return "the model draws random numbers, such as dropout" if losses[0] != losses[1] else None


def choose(model: FlatModel, batch: Batch, steps: float) -> bool:
    """Return whether compiling pays back: time both ways on this machine, if the run is long enough for it."""
    plain = _time(lambda: compute_plainly(model, batch))
    if steps * plain < WORTH_COMPILING:
        return False
    try:
        compiled = CompiledStep(model, batch)
    except BadInput:
        return False
    return _time(lambda: compiled.compute(*batch)) < GAIN * _time(lambda: compute_plainly(model, batch))


def _time(step: Callable[[], Any]) -> float:
    seconds: list[float] = []
    for _ in range(TIMED_STEPS):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def _form(batch: Batch) -> tuple[Any, ...]:
    return tuple((leaf.shape, leaf.dtype) for tree in batch for leaf in leaves_of(tree))


def _agree(compiled: tuple[torch.Tensor, Any], plain: tuple[torch.Tensor, Any]) -> bool:
    if abs(float(compiled[0]) - float(plain[0])) > TOLERANCE * max(1.0, abs(float(plain[0]))):
        return False
    for a, b in zip(compiled[1], plain[1], strict=True):
        if float((a - b).abs().max()) > TOLERANCE * max(float(b.abs().max()), 1e-6):
            return False
    return True


def _compile(model: FlatModel) -> Callable[..., Any]:
    """Return loss and gradients of (weights, inputs, targets) as one compiled graph for one thread."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlga" / "compiled-steps"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))  # kept between runs, shared by workers
    module, criterion = model.module, model.criterion
    names = [name for name, p in module.named_parameters() if p.requires_grad]

    def loss_of(weights: Sequence[torch.Tensor], inputs: Tree, targets: Tree) -> torch.Tensor:
        own = dict(zip(names, weights, strict=True))
        return criterion(_call(module, own, inputs), targets)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients: Any = torch.func.grad_and_value(loss_of)

        def both(weights: Sequence[torch.Tensor], inputs: Tree, targets: Tree) -> Any:
            pieces, loss = gradients(weights, inputs, targets)
            return loss, pieces

        options: dict[str, Any] = {"cpp.threads": 1}
        if (products := make_product_pass()) is not None:
            options["post_grad_custom_pre_pass"] = products
        # A new code object each time: torch counts what it compiled of one, and gives up after eight models.
        code, more = both.__code__.replace(), (both.__globals__, both.__name__, both.__defaults__, both.__closure__)
        return torch.compile(types.FunctionType(code, *more), fullgraph=True, dynamic=False, options=options)


def _call(module: nn.Module, own: dict[str, torch.Tensor], inputs: Tree) -> Any:
    if isinstance(inputs, dict):
        return torch.func.functional_call(module, own, (), inputs)  # pyright: ignore[reportUnknownArgumentType]
    spread = isinstance(inputs, list | tuple)
    return torch.func.functional_call(module, own, tuple(inputs) if spread else (inputs,))  # pyright: ignore
