"""Milliseconds of an SGD step on models of a user's own: fedlga's general path against a bare PyTorch loop.

    .venv/bin/python benchmarks/models.py [--models lstm,cnn] [--repetitions 5] [--out results/models/models.csv]

Three ways to train the same model on the same batches, each in a process of its own, on one thread:

- bare: the loop that a user writes: zero_grad, backward, torch.optim.SGD; batches by index_select.
- general: a fedlga.Task, fitted to its data; a block of steps is one assignment, with all that belongs to it.
- compiled: the same with compile on. MLP-400 is trained by fedlga's own kernel there, as `fast` is on.

A repetition starts the three processes anew and runs them in turns, a block of 20 steps at a time, for so many seconds.
Every block starts from the same weights, which the bare loop gets outside the clock. The mean loss of a block must be
the same in all three. A ratio says how many times as fast as the bare loop fedlga is: the median over a repetition's
blocks; the table has the median of all repetitions, the lowest and the highest. `compile_seconds` is the first
repetition's, with an empty cache; the others find the code there. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedlga import Assignment, BadInput, Task
from fedlga.core.files import format_csv, write_atomically
from fedlga.core.process import keep_freed_memory
from fedlga.core.randomness import Stream, generator, torch_seed
from fedlga.experiments.measures import describe_machine
from fedlga.learning.models import cnn, mlp
from fedlga.learning.problem import fit_task
from fedlga.learning.reading import read_task_data
from fedlga.learning.training import Devices, TrainingOptions
from fedlga.methods.fedavg import FedAvg

VARIANTS = ("bare", "general", "compiled")
SEED, EXAMPLES, BATCH, STEPS, RATE = 0, 600, 10, 20, 0.01
SHAPE, CLASSES, SYMBOLS = (1, 28, 28), 10, 80
FEWEST_BLOCKS = 5  # of each variant in a repetition, even if it takes longer than --seconds
TOLERANCE = 1e-3  # of a block's mean loss, relative to the bare loop's

Data = tuple[torch.Tensor, torch.Tensor]


# The models


def make_mcmahan_cnn() -> nn.Module:
    """The CNN of McMahan et al. 2017 for MNIST."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def make_two_layer_mlp() -> nn.Module:
    """The MLP of McMahan et al. 2017: two hidden layers of 200 units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 200),
        nn.ReLU(),
        nn.Linear(200, 200),
        nn.ReLU(),
        nn.Linear(200, CLASSES),
    )


class CharacterLSTM(nn.Module):
    """LEAF's model for Shakespeare; it scores the next character at every position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.score = nn.Linear(256, SYMBOLS)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:  # noqa: D102
        return self.score(self.lstm(self.embed(characters))[0])


class SmallTransformer(nn.Module):
    """A causal transformer of two layers, without dropout, with a learned vector for each position."""

    def __init__(self, length: int = 64, width: int = 64, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(SYMBOLS, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.score = nn.Linear(width, SYMBOLS)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:  # noqa: D102
        hidden = self.layers(self.embed(symbols) + self.positions, mask=self.mask, is_causal=True)
        return self.score(hidden)


def make_images() -> Data:
    """Return random images, one class each."""
    random = torch.Generator().manual_seed(SEED)
    images = torch.randn(EXAMPLES, *SHAPE, generator=random)
    return images, torch.randint(CLASSES, (EXAMPLES,), generator=random)


def make_sequences(length: int) -> Data:
    """Return random sequences, and the same sequences moved by one."""
    random = torch.Generator().manual_seed(SEED)
    symbols = torch.randint(SYMBOLS, (EXAMPLES, length + 1), generator=random)
    return symbols[:, :-1].contiguous(), symbols[:, 1:].contiguous()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Data]]] = {
    "mcmahan-cnn": (make_mcmahan_cnn, make_images),
    "cnn": (lambda: cnn(SHAPE, CLASSES), make_images),
    "mlp-200-200": (make_two_layer_mlp, make_images),
    "lstm": (CharacterLSTM, lambda: make_sequences(80)),
    "transformer": (SmallTransformer, lambda: make_sequences(64)),
    "mlp-400": (lambda: mlp(SHAPE, CLASSES), make_images),
}


# In a variant's process


class Trainer(Protocol):
    """One way to train."""

    def restore(self) -> None:
        """Put the weights back to what they were at the start: this is not timed."""

    def train(self, number: int) -> float:
        """Train for a block of steps, on the batches of this number; return the mean loss."""
        ...


class BareLoop:
    """The loop that a user writes. Its weights and the order of its batches are those that fedlga draws."""

    def __init__(self, name: str) -> None:
        make, data = MODELS[name]
        self._inputs, self._targets = data()
        torch.manual_seed(torch_seed(SEED, Stream.WEIGHTS))
        self._module = make().train()
        self._optimizer = torch.optim.SGD(self._module.parameters(), lr=RATE)
        self._loss = functional.cross_entropy if self._targets.dim() == 1 else flat_cross_entropy
        self._start = {name: value.clone() for name, value in self._module.state_dict().items()}

    def restore(self) -> None:  # noqa: D102
        self._module.load_state_dict(self._start)

    def train(self, number: int) -> float:  # noqa: D102
        order = torch.from_numpy(generator(SEED, Stream.BATCHES, number, 0).permutation(EXAMPLES))
        losses: list[torch.Tensor] = []
        for rows in order[: STEPS * BATCH].split(BATCH):
            inputs, targets = self._inputs.index_select(0, rows), self._targets.index_select(0, rows)
            self._optimizer.zero_grad()
            loss = self._loss(self._module(inputs), targets)
            loss.backward()
            self._optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()


def flat_cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of one class a position, as most users write it."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class OneDevice:
    """fedlga's devices, as a worker has them: one device that holds all examples. A block is an assignment."""

    def __init__(self, name: str, *, compiled: bool) -> None:
        """Compile at once, if it is asked for; BadInput if the model cannot be compiled."""
        keep_freed_memory()
        make, data = MODELS[name]
        task = Task(make, data, name=name)
        examples = read_task_data(task).train
        model = fit_task(task, examples, SEED).model
        self._start = model.vector.clone()
        options = TrainingOptions(BATCH, fast=compiled, compile=compiled)
        self._devices = Devices(FedAvg(), model, examples, [np.arange(EXAMPLES)], options)
        started = time.perf_counter()
        self.has_kernel = self._devices.kernel is not None  # both are made when they are read first
        self.is_compiled = self.has_kernel or self._devices.compiled is not None
        self.compile_seconds = time.perf_counter() - started

    def restore(self) -> None:
        """Do nothing: an assignment carries the weights that it starts from."""

    def train(self, number: int) -> float:  # noqa: D102
        assignment = Assignment(number, 0, self._start, STEPS, STEPS, RATE, 0.0, SEED, {})
        update, _ = self._devices.perform(assignment, {})
        assert update.steps == STEPS
        return update.train_loss


def serve(variant: str, name: str) -> None:
    """Prepare a variant and say so; then train a block for each number that comes, until no more come."""
    torch.set_num_threads(1)
    facts: dict[str, Any] = {"ready": True}
    trainer: Trainer
    if variant == "bare":
        trainer = BareLoop(name)
    else:
        try:
            trainer = device = OneDevice(name, compiled=variant == "compiled")
        except BadInput as error:
            reason = str(error).removeprefix("compile: ").removesuffix("; it takes off")
            answer({"ready": False, "note": f"not compiled: {reason}"})
            return
        assert device.is_compiled == (variant == "compiled")
        if device.is_compiled:
            facts |= {"compile_seconds": device.compile_seconds}
            facts |= {"note": "compiled: fedlga's own kernel"} if device.has_kernel else {}
    answer(facts)
    for line in sys.stdin:
        trainer.restore()
        started = time.perf_counter()
        loss = trainer.train(int(line))
        answer({"seconds": (time.perf_counter() - started) / STEPS, "loss": loss})


def answer(message: dict[str, Any]) -> None:
    """Send a message to the process that started this one."""
    print(json.dumps(message), flush=True)


# In the main process


class Variant:
    """A process that trains one model in one way."""

    def __init__(self, variant: str, name: str, cache: Path) -> None:
        """Start it, and wait until it is ready. Compiled code is kept in the folder `cache`."""
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", variant, "--models", name]
        environment = {k: v for k, v in os.environ.items() if k != "TORCHINDUCTOR_CACHE_DIR"}
        environment |= {"XDG_CACHE_HOME": str(cache)}
        self._name = f"{name}, {variant}"
        self._process = subprocess.Popen(  # noqa: S603
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.facts = self._read()

    def train(self, number: int) -> tuple[float, float]:
        """Return the seconds of a step in a block, and the block's mean loss."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        reply = self._read()
        return reply["seconds"], reply["loss"]

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()  # closes its input

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name}: the process ended with code {self._process.wait()}")
        return json.loads(line)


def run_repetition(name: str, seconds: float, cache: Path) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Return the seconds of a step in every block of each variant that runs, and what compiling said."""
    with ExitStack() as closing:
        variants: dict[str, Variant] = {}
        for kind in VARIANTS:
            variants[kind] = Variant(kind, name, cache)
            closing.callback(variants[kind].close)
        running = {kind: variant for kind, variant in variants.items() if variant.facts["ready"]}
        times: dict[str, list[float]] = {kind: [] for kind in running}
        number, started = 0, time.perf_counter()
        while number <= FEWEST_BLOCKS or time.perf_counter() - started < seconds:
            losses: dict[str, float] = {}
            for kind in running if number % 2 else reversed(running):
                step, losses[kind] = running[kind].train(number)
                if number:  # the first block is for warming up
                    times[kind].append(step)
            check_losses(name, losses)
            number += 1
        return times, variants["compiled"].facts


def check_losses(name: str, losses: dict[str, float]) -> None:
    """See that all variants did the same training: the same weights at the start, and the same batches."""
    for kind, loss in losses.items():
        if not abs(loss - losses["bare"]) <= TOLERANCE * abs(losses["bare"]):
            raise RuntimeError(f"{name}: the mean loss is {loss} ({kind}) and {losses['bare']} (bare)")


def measure(name: str, repetitions: int, seconds: float) -> dict[str, Any]:
    """Return a row of the table: one model."""
    bare: list[float] = []
    ratios: dict[str, list[float]] = {kind: [] for kind in VARIANTS[1:]}
    compiling: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fedlga-models-") as cache:
        for repetition in range(repetitions):
            times, facts = run_repetition(name, seconds, Path(cache))
            bare.append(statistics.median(times["bare"]))
            compiling.append(facts)
            words = [f"bare {1e3 * bare[-1]:.3f} ms"]
            for kind in (kind for kind in ratios if kind in times):
                pairs = zip(times["bare"], times[kind], strict=True)
                ratios[kind].append(statistics.median(theirs / ours for theirs, ours in pairs))
                words.append(f"{kind} {ratios[kind][-1]:.2f} times as fast")
            print(f"{name} {repetition + 1}/{repetitions}: {', '.join(words)}", flush=True)
    row: dict[str, Any] = {"model": name, "bare_ms": 1e3 * statistics.median(bare)}
    for kind, values in ratios.items():
        row[f"{kind}_ratio"] = statistics.median(values) if values else None
        row[f"{kind}_low"] = min(values, default=None)
        row[f"{kind}_high"] = max(values, default=None)
    return row | {"compile_seconds": compiling[0].get("compile_seconds"), "note": compiling[0].get("note", "")}


def main() -> None:
    """Print a line for each repetition, and write the table."""
    parser = argparse.ArgumentParser(description="An SGD step on models of a user's own, against a PyTorch loop.")
    parser.add_argument("--models", default=",".join(MODELS), help="some of %(default)s")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a repetition's blocks, at least")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.models)
        return
    names = options.models.split(",")
    if unknown := [name for name in names if name not in MODELS]:
        parser.error(f"--models: unknown {unknown[0]!r}; takes some of {', '.join(MODELS)}")
    print(f"{describe_machine()}, torch {torch.__version__}, one thread, batches of {BATCH}")
    rows: list[dict[str, Any]] = []
    for name in names:
        rows.append(measure(name, options.repetitions, options.seconds))
        print("  ".join(f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items() if v))
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(options.out, format_csv(rows))


if __name__ == "__main__":
    main()
