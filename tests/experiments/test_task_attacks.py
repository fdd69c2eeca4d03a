"""What went wrong silently with tasks of users' own, each found by trying to: it must not come back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import fedlga
from fedlga import Experiment, Task
from fedlga.core.settings import BadInput
from fedlga.experiments.simulation import bind_task
from fedlga.learning.torch_private import has_fast_products, speed_up_products

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(80, 4)).astype(np.float32), RNG.integers(0, 2, 80)

# A file's data() and model() draw without a seed: every process must get the same.
DRAWS = """
import random
import numpy as np
import torch
from torch import nn

def data():
    x, y = torch.from_numpy(np.random.normal(size=(90, 4))), torch.randint(0, 2, (90,))
    random_rows = random.sample(range(90), 90)
    whole = torch.utils.data.TensorDataset(x.float()[random_rows], y[random_rows])
    train, test = torch.utils.data.random_split(whole, [0.7, 0.3])
    return {"train": train, "test": test}

def model():
    layer = nn.Linear(4, 2)
    layer.register_buffer("frozen", torch.from_numpy(np.random.normal(size=3)))
    return layer
"""
FORGETS = """
import os
import torch
from torch import nn

def data():
    return torch.ones(40, 4), torch.arange(40) % 2

def model():
    layer = nn.Linear(4, 2)
    layer.register_buffer("process", torch.tensor(os.getpid()))
    return layer
"""


def last(experiment, task=None):
    return list(fedlga.rounds(experiment, task=task))[-1].metrics


def write(folder, text):
    (folder / "mine.py").write_text(text)
    return str(folder / "mine.py")


def test_draws_of_a_task_are_the_same_in_every_process(tmp_path):
    """A split that is drawn anew in a worker would train on test examples."""
    file = write(tmp_path, DRAWS)
    results = [last(Experiment(task=file, rounds=2, backend=b, workers=2)) for b in ("serial", "pool", "serial")]
    assert results[0] == results[1] == results[2]


def test_a_task_that_depends_on_the_process_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"model\(\) or data\(\) give something else in another process"):
        last(Experiment(task=write(tmp_path, FORGETS), rounds=1, backend="pool", workers=2))


def test_the_generators_of_the_caller_are_left_alone():
    import random

    def draw():
        return random.random(), np.random.rand(), float(torch.rand(()))

    task = Task(lambda: nn.Linear(4, 2), lambda: (X, Y))
    states = []
    for train in (False, True):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        if train:
            last(Experiment(rounds=1, backend="serial"), task)
        states.append(draw())
    assert states[0] == states[1]


class Pair(nn.Module):
    """Its output is no single tensor."""

    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(self.norm(x)), x


def test_devices_with_their_own_batch_norm_are_tested_with_it_whatever_the_outputs():
    def loss(outputs, targets):
        return ((outputs[0][:, 0] - targets) ** 2).mean()

    task = Task(Pair, (X, X[:, 0].copy()), loss=loss, metrics={"worst": lambda o, t: (o[0][:, 0] - t).abs().max()})
    settings = {"rounds": 2, "batch_norm": "device", "workers": 2}
    serial, pool = (last(Experiment(**settings, backend=backend), task) for backend in ("serial", "pool"))
    assert serial == pool


def test_the_worst_device_follows_the_direction_of_the_experiment():
    task = Task(lambda: nn.Linear(4, 1), (X, X[:, 0].copy()), metrics={"off": lambda o, t: (o[:, 0] - t).abs()})
    lower = last(Experiment(rounds=1, backend="serial", better="lower"), task)
    higher = last(Experiment(rounds=1, backend="serial", better="higher"), task)
    assert higher["off_worst"] < lower["off"] < lower["off_worst"]


def test_a_partition_function_sees_the_labels_of_data_that_is_read_lazily():
    class Rows:
        def __len__(self):
            return 80

        def __getitem__(self, row):
            return X[row], int(Y[row])

    seen = []

    def partition(targets, devices, rng):
        seen.append(targets.tolist())
        return [np.flatnonzero(targets == label) for label in range(2)]

    task = Task(lambda: nn.Linear(4, 2), Rows(), partition=partition, experiment={"devices": 2})
    last(Experiment(rounds=1, backend="serial"), task)
    assert len(set(seen[0])) == 2


def test_frames_with_columns_in_another_order_are_joined_by_name():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "b": 100 + X[:, 1], "y": X[:, 0]})
    turned = frame[["y", "b", "a"]]
    task = Task(lambda: nn.Linear(2, 1), {"train": (frame, "y"), "test": (turned, "y")})
    same = Task(lambda: nn.Linear(2, 1), {"train": (frame, "y"), "test": (frame, "y")})
    e = Experiment(rounds=1, backend="serial", lr=1e-5)
    assert last(e, task) == last(e, same)
    other = Task(lambda: nn.Linear(2, 1), {"train": (frame, "y"), "test": (frame.rename(columns={"a": "c"}), "y")})
    with pytest.raises(BadInput, match="frames differ in column 'a'"):
        last(e, other)


def test_a_file_s_settings_count_from_python_too(tmp_path):
    file = write(tmp_path, DRAWS + "\nexperiment = {'lr': 0.123, 'devices': 4, 'target': 0.9}\n")
    bound = bind_task(Experiment(task=file, devices=6), None)
    assert (bound.lr, bound.devices, bound.target) == (0.123, 6, 0.9)


def test_a_test_set_that_does_not_fit_is_refused_before_training():
    for test in ((X[:, :3], Y), (X, Y + 5)):
        task = Task(lambda: nn.Linear(4, 2), {"train": (X, Y), "test": test})
        with pytest.raises(BadInput, match=r"data\(\): the test examples do not fit"):
            last(Experiment(rounds=1, backend="serial"), task)


def test_the_test_loss_of_sequences_is_that_of_their_positions():
    """ln(perplexity), although sequences differ in how many positions count, and some have none."""
    texts, targets = RNG.integers(0, 5, (240, 6)), RNG.integers(0, 5, (240, 6))
    targets[::3, 2:] = -100
    targets[::7] = -100

    def model():
        return nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))

    metrics = last(Experiment(rounds=1, backend="serial"), Task(model, (texts, targets)))
    assert np.exp(metrics["loss"]) == pytest.approx(metrics["perplexity"], rel=1e-5)


@pytest.mark.skipif(not has_fast_products(), reason="this torch has no oneDNN")
def test_gradients_of_gradients_go_through_large_layers():
    """A penalty on the gradient by the inputs."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512))
    fast = nn.Sequential(nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 512))
    fast.load_state_dict(plain.state_dict())
    speed_up_products(fast)
    gradients = []
    for module in (plain, fast):
        x = torch.linspace(-1, 1, 32 * 512).reshape(32, 512).requires_grad_()
        (by_input,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        by_input.square().sum().backward()
        gradients.append(module[0].weight.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-3, atol=1e-3)


def test_clipping_leaves_weight_decay_alone():
    """As torch: the gradient is clipped to 0.1, and decay * w is added to it."""
    task = Task(
        lambda: nn.Linear(4, 1, bias=False), (10 * X, 100 * X[:, 0]), experiment={"devices": 1, "fleet": "equal"}
    )
    settings = {"rounds": 1, "epochs": 1, "steps_per_epoch": 1, "batch_size": 64, "backend": "serial", "lr": 0.5}
    from fedlga.core.round import run_rounds
    from fedlga.experiments.simulation import simulate

    with simulate(Experiment(**settings, clip=0.1, weight_decay=0.3), task=task) as simulation:
        start = simulation.start.w.clone()
        ((state, _),) = run_rounds(simulation.federation, simulation.start, 1)
    step = (start - state.w) / 0.5 - 0.3 * start
    assert float(step.norm()) == pytest.approx(0.1, rel=1e-3)


def test_a_loss_with_parameters_of_its_own_is_refused():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, targets):
            return self.scale * ((outputs - targets) ** 2).mean()

    with pytest.raises(BadInput, match="loss has parameters of its own"):
        last(Experiment(rounds=1, backend="serial"), Task(lambda: nn.Linear(4, 1), (X, X[:, :1]), loss=Weighted()))


def test_train_in_memory_and_test_read_lazily_go_with_the_pool():
    class Rows:
        def __len__(self):
            return 20

        def __getitem__(self, row):
            return X[row], int(Y[row])

    task = Task(lambda: nn.Linear(4, 2), {"train": (X, Y), "test": Rows()})
    results = [last(Experiment(rounds=1, backend=backend, workers=2), task) for backend in ("serial", "pool")]
    assert results[0] == results[1]


def test_outputs_of_a_class_of_their_own_stay_what_they_are():
    class Output(dict):
        def __init__(self, **values):
            super().__init__(**values)
            self.logits = values["logits"]

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x):
            return Output(logits=self.layer(x))

    task = Task(
        Model,
        (X, Y),
        loss=lambda o, t: nn.functional.cross_entropy(o.logits, t),
        metrics={"right": lambda o, t: (o.logits.argmax(1) == t).float().mean()},
    )
    assert 0 <= last(Experiment(rounds=1, backend="serial"), task)["right"] <= 1
