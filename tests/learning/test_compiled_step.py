"""The compiled step: the gradients of the plain one, what it refuses, and the same bits on every backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedlga
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.learning import compiled_step
from fedlga.learning.compiled_step import CompiledStep, choose, compute_plainly, why_not
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.problem import fit_task
from fedlga.learning.task import Task
from run_folders import assert_same_state

slow = pytest.mark.slow(seconds=20)
BATCH = 8


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """torch's compiler keeps what it made in a folder of this file's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        yield


def draw(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32))


class Two(nn.Module):
    """Takes two inputs, by place or by name."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.left(a) * self.right(b)).sum(1, keepdim=True)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def small_cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))


def fit(model, inputs, targets, **parts) -> tuple[FlatModel, tuple[object, torch.Tensor]]:
    examples = TensorExamples(inputs, targets)
    return fit_task(Task(model, None, **parts), examples, 0).model, examples.piece(0, BATCH)


def assert_same_gradients(model: FlatModel, step: CompiledStep, batch) -> None:
    loss, gradients = step.compute(*batch)
    plain_loss, plain = compute_plainly(model, batch)
    assert float(loss) == pytest.approx(float(plain_loss), abs=1e-6)
    for one, other in zip(gradients, plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


CLASSES = torch.arange(2 * BATCH) % 3
CASES = {
    "cnn": (small_cnn, draw(2 * BATCH, 1, 8, 8), CLASSES),
    "tuple": (Two, (draw(2 * BATCH, 3), draw(2 * BATCH, 2)), draw(2 * BATCH)),
    "dict": (Two, {"b": draw(2 * BATCH, 2), "a": draw(2 * BATCH, 3)}, draw(2 * BATCH)),
    "tied": (Tied, draw(2 * BATCH, 3), CLASSES),
}


@slow
@pytest.mark.parametrize("case", CASES)
def test_the_gradients_are_those_of_the_plain_step(case):
    make, inputs, targets = CASES[case]
    model, batch = fit(make, inputs, targets)
    step = CompiledStep(model, batch)
    assert step.fits(*batch)
    assert_same_gradients(model, step, batch)
    # Other examples, and other weights: the compiled code holds neither.
    model.load(model.vector * 0.5 + 0.1)
    assert_same_gradients(model, step, TensorExamples(inputs, targets).piece(BATCH, 2 * BATCH))


@slow
def test_a_list_of_inputs_is_spread_like_a_tuple():
    """A collate of the task's own may return one."""
    model, batch = fit(Two, CASES["tuple"][1], CASES["tuple"][2])
    inputs = (list(batch[0]), batch[1])
    assert torch.equal(model.call(inputs[0]), model.call(batch[0]))
    assert_same_gradients(model, CompiledStep(model, inputs), inputs)


@slow
def test_a_frozen_layer_has_no_gradient():
    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
        model[0].weight.requires_grad_(False)
        return model

    model, batch = fit(make, draw(2 * BATCH, 3), CLASSES)
    step = CompiledStep(model, batch)
    assert len(step.compute(*batch)[1]) == 3
    assert_same_gradients(model, step, batch)


@slow
def test_compiled_code_that_gives_other_gradients_is_refused(monkeypatch):
    model, batch = fit(lambda: nn.Linear(3, 3), draw(2 * BATCH, 3), CLASSES)
    real = compiled_step._compile(model)

    def wrong(*given):
        loss, gradients = real(*given)
        return loss, [2 * piece for piece in gradients]

    monkeypatch.setattr(compiled_step, "_compile", lambda model: wrong)
    with pytest.raises(BadInput, match="the compiled step gives other gradients than the plain one; it takes off"):
        CompiledStep(model, batch)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(x)[0][:, -1])


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3).to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.to(torch.bfloat16))


@pytest.mark.parametrize(
    ("model", "inputs", "reason"),
    [
        (Lstm, draw(2 * BATCH, 5, 3), "torch does not compile LSTM, GRU and RNN layers"),
        (
            lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)),
            draw(2 * BATCH, 3),
            "draws random numbers, such as dropout",
        ),
        (
            lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
            draw(2 * BATCH, 3),
            "training changes the model's buffers",
        ),
        (Half, draw(2 * BATCH, 3), "only float32 models are compiled"),
    ],
    ids=["lstm", "dropout", "batch norm", "bfloat16"],
)
def test_what_cannot_be_compiled_is_refused_in_one_line(model, inputs, reason):
    model, batch = fit(model, inputs, CLASSES)
    state = torch.get_rng_state()
    with pytest.raises(BadInput) as error:
        CompiledStep(model, batch)
    assert str(error.value).startswith("compile: ")
    assert reason in str(error.value)
    assert str(error.value).endswith("; it takes off")
    assert len(str(error.value).splitlines()) == 1
    assert torch.equal(torch.get_rng_state(), state), "the caller's draws go on"


def test_what_the_compiler_raises_becomes_one_line(monkeypatch):
    def fails(*_):
        raise RuntimeError("internal error\nwith a long story")

    model, batch = fit(lambda: nn.Linear(3, 3), draw(2 * BATCH, 3), CLASSES)
    assert why_not(model, batch) is None
    monkeypatch.setattr(compiled_step, "_compile", lambda model: fails)
    with pytest.raises(BadInput) as error:
        CompiledStep(model, batch)
    assert str(error.value) == "compile: torch cannot compile this model here (internal error); it takes off"


@pytest.mark.parametrize(("plain", "steps", "pays"), [(1.0, 10, False), (1.0, 100, True), (0.5, 100, False)])
def test_auto_compiles_only_long_runs(monkeypatch, plain, steps, pays):
    """Below a minute of training nothing is compiled; then whichever is faster. No clock: the times are given."""
    model, batch = fit(lambda: nn.Linear(3, 3), draw(2 * BATCH, 3), CLASSES)
    tried = []

    class Fake:
        def __init__(self, *given) -> None:
            tried.append(given)

    times = iter([plain, 0.4, plain])
    monkeypatch.setattr(compiled_step, "WORTH_COMPILING", 60.0)
    monkeypatch.setattr(compiled_step, "CompiledStep", Fake)
    monkeypatch.setattr(compiled_step, "_time", lambda step: next(times))
    assert choose(model, batch, steps) is pays
    assert bool(tried) is pays


def test_auto_does_without_what_cannot_be_compiled(monkeypatch):
    model, batch = fit(lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), draw(2 * BATCH, 3), CLASSES)
    monkeypatch.setattr(compiled_step, "_time", lambda step: 1.0)
    assert choose(model, batch, 1000) is False


def task() -> Task:
    """Twenty-two examples a device and batches of eight: the last batch is smaller."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((88, 1, 8, 8)), np.arange(88) % 3
    parts = {str(i): (x[i::4], y[i::4]) for i in range(4)}
    return Task(small_cnn, {"train": parts, "test": (x[:9], y[:9])}, name="small")


SETTINGS = {"rounds": 2, "epochs": 2, "batch_size": BATCH, "lr": 0.05, "method": "scaffold"}


@slow
def test_compiled_runs_have_the_same_bits_on_every_backend(tmp_path):
    for backend in ("serial", "pool"):
        e = Experiment(compile="on", backend=backend, workers=2, **SETTINGS)
        fedlga.run(e, tmp_path / backend, task=task())
    assert_same_state(tmp_path / "serial", tmp_path / "pool")


@slow
def test_a_smaller_last_batch_takes_the_plain_way(monkeypatch):
    """Three batches an epoch: two of eight are compiled, one of six is not. Two epochs, four devices, two rounds."""
    shapes = []
    compute = CompiledStep.compute

    def count(self, inputs, targets):
        shapes.append(len(targets))
        return compute(self, inputs, targets)

    monkeypatch.setattr(CompiledStep, "compute", count)
    e = Experiment(compile="on", backend="serial", rho=0.0, **SETTINGS)
    compiled = list(fedlga.rounds(e, task=task()))
    assert set(shapes) == {BATCH}
    assert len(shapes) == 1 + 2 * 2 * 4 * 2, "the first is the trial"
    plain = list(fedlga.rounds(Experiment(backend="serial", rho=0.0, **SETTINGS), task=task()))
    assert [r.steps for r in compiled] == [r.steps for r in plain] == [[6, 6, 6, 6]] * 2
    assert [r.loss for r in compiled] == pytest.approx([r.loss for r in plain], rel=1e-4)


def test_a_model_that_cannot_be_compiled_is_refused_before_the_run(tmp_path):
    dropout = Task(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.Dropout(0.5)), task().data)
    e = Experiment(compile="on", backend="serial", **SETTINGS)
    with pytest.raises(BadInput, match="compile: the model draws random numbers"):
        fedlga.run(e, tmp_path / "run", task=dropout)
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
