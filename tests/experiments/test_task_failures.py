"""What only fails in the middle of a run, beyond what is tried before it: one line that names the function."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

import fedlga
from fedlga import Experiment, Task
from fedlga.core.settings import BadInput
from fedlga.learning.problem import sequence_cross_entropy

COUNT = 400
BAD = 321  # a row that none of the trials before the run looks at
X = np.random.default_rng(0).normal(size=(COUNT, 4)).astype(np.float32)
SHORT = {"rounds": 2, "devices": 4, "fleet": "equal", "epochs": 1}


class Rows(torch.utils.data.Dataset):
    """Examples that are read one by one; one input, or one target, is another."""

    def __init__(self, targets, bad_input=None, inputs=X):
        self.rows, self.y, self.bad_input = inputs, targets, bad_input

    def __len__(self):
        return len(self.y)

    def __getitem__(self, row):
        x = torch.as_tensor(self.rows[row]).clone()
        if row == BAD and self.bad_input is not None:
            x[0] = self.bad_input
        return x, self.y[row]


def refusal(task, backend="serial", **settings) -> str:
    with pytest.raises(BadInput) as error:
        list(fedlga.rounds(Experiment(**{**SHORT, **settings}, backend=backend), task=task))
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def classes(wrong=None):
    labels = torch.arange(COUNT) % 2
    if wrong is not None:
        labels[BAD] = wrong
    return labels


@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_not_finite_in_data_that_is_read_lazily(bad, backend):
    train = Rows(classes(), bad)
    text = refusal(Task(lambda: nn.Linear(4, 2), {"train": train, "test": (X[:9], classes()[:9])}), backend, workers=2)
    assert text.startswith(f"data(): the inputs of row {BAD} hold 1 values that are not finite")


def test_a_number_that_is_not_finite_in_a_lazy_test_set():
    text = refusal(Task(lambda: nn.Linear(4, 2), {"train": (X, classes()), "test": Rows(classes(), math.nan)}))
    assert text.startswith("data(): the inputs of row")
    assert "hold 1 values that are not finite" in text


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_label_beyond_the_classes_in_data_that_is_read_lazily(backend):
    text = refusal(
        Task(lambda: nn.Linear(4, 2), {"train": Rows(classes(7)), "test": (X[:9], classes()[:9])}), backend, workers=2
    )
    assert text.startswith("loss() failed for outputs float32 of ")
    assert "from 0 to 7 (IndexError: Target 7 is out of bounds.)" in text


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_label_that_counts_for_nothing_in_data_that_is_read_lazily(part):
    """Torch's loss would leave the example out, without a word."""
    data = {"train": (X, classes()), "test": (X[:9], classes()[:9]), part: Rows(classes(-100))}
    text = refusal(Task(lambda: nn.Linear(4, 2), data), label_smoothing=0.1)
    assert "a label of -100; " in text


def test_a_batch_in_which_nothing_counts_has_no_loss():
    tokens = torch.arange(COUNT * 3).reshape(COUNT, 3) % 4
    targets = (tokens + 1) % 4
    targets[::7] = -100
    task = Task(predict, (tokens, targets))
    records = list(fedlga.rounds(Experiment(**SHORT, batch_size=1, backend="serial"), task=task))
    assert all(math.isfinite(r.train_loss) for r in records)


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_slices_of_tensors(backend):
    """Columns of a wider tensor are not stored one after the other."""
    table = torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(0))
    task = Task(lambda: nn.Linear(4, 1), (table[:, :4], table[:, 4]))
    whole = Task(lambda: nn.Linear(4, 1), (table[:, :4].clone(), table[:, 4].clone()))
    e = Experiment(**SHORT, backend=backend, workers=2)
    sliced, copied = ([r.metrics for r in fedlga.rounds(e, task=t)] for t in (task, whole))
    assert sliced == copied


@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_targets_of_lower_precision(backend, dtype):
    x = torch.from_numpy(X).to(dtype)
    task = Task(lambda: nn.Linear(4, 1).to(dtype), (x, x[:, 0]))
    record = list(fedlga.rounds(Experiment(**SHORT, backend=backend, workers=2), task=task))[-1]
    assert math.isfinite(record.metrics["rmse"])


def test_several_labels_with_a_metric_that_takes_integers():
    torchmetrics = pytest.importorskip("torchmetrics")
    labels = torch.stack([classes(), 1 - classes()], 1).float()
    auroc = torchmetrics.AUROC(task="multilabel", num_labels=2)
    task = Task(lambda: nn.Linear(4, 2), (X, labels), nn.BCEWithLogitsLoss(), {"auroc": auroc})
    record = list(fedlga.rounds(Experiment(**SHORT, backend="serial"), task=task))[-1]
    assert 0 <= record.metrics["auroc"] <= 1
    kind = type(torchmetrics.MeanSquaredError())
    text = refusal(Task(lambda: nn.Linear(4, 1), (X, X[:, 0]), metrics={"mse": kind}))
    assert text.endswith("metrics(): 'mse' is a class; it takes an instance of it")


@pytest.mark.parametrize("loss", [None, nn.CrossEntropyLoss(), nn.CrossEntropyLoss])
@pytest.mark.parametrize("wrong", [2, -1, -100])
def test_a_label_beyond_the_classes_in_arrays_is_refused_before_the_run(loss, wrong):
    task = Task(lambda: nn.Linear(4, 2), (X, classes(wrong)), loss)
    if loss is not None and wrong == -100:  # torch's loss leaves it out, and so does accuracy
        records = list(fedlga.rounds(Experiment(**SHORT, backend="serial"), task=task))
        assert 0 <= records[-1].metrics["accuracy"] <= 1
        return
    text = refusal(task)
    assert f"data() gave a label of {wrong}, and model() scores 2 classes; it takes labels from 0 to 1" in text


def test_a_label_that_only_the_test_set_has_is_refused():
    text = refusal(Task(lambda: nn.Linear(4, 2), {"train": (X, classes()), "test": (X, classes(-100))}))
    assert text == "data(): the test examples have a label of -100; it takes labels from 0 to 1"


def test_a_label_of_none_counts_for_nothing_in_accuracy():
    """With one label an example too: three examples, one of them without a label, one right."""
    from fedlga.learning.metrics import BUILT_IN

    each = BUILT_IN["accuracy"].each
    assert each is not None
    outputs = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert each(outputs, torch.tensor([0, -100, 1])).tolist() == [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_token_beyond_the_embedding(backend):
    tokens = torch.arange(COUNT * 3).reshape(COUNT, 3) % 5
    tokens[BAD, 0] = 9
    task = Task(lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 2)), (tokens, classes()))
    text = refusal(task, backend, workers=2)
    assert text.startswith("model() failed for inputs int64 of ")
    assert "from 0 to 9 (IndexError: index out of range in self)" in text


def test_a_loss_of_one_s_own_that_fails_names_its_line():
    def loss(outputs, targets):
        if targets.max() > 1:
            raise ArithmeticError("too large")
        return (outputs.squeeze(1) - targets).square().mean()

    text = refusal(Task(lambda: nn.Linear(4, 1), (X, classes(5).float()), loss))
    assert "loss() failed for outputs float32 of " in text
    assert "ArithmeticError: too large (test_task_failures.py, line " in text


def pad(items):
    longest = max(len(x) for x, _ in items)
    inputs = torch.stack([nn.functional.pad(x, (0, longest - len(x))) for x, _ in items])
    targets = torch.stack([nn.functional.pad(y, (0, longest - len(y)), value=-100) for _, y in items])
    return inputs, targets


def sequences(lengths):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 4, (length,), generator=generator) for length in lengths]
    return [(row, (row + 1) % 4) for row in rows]


class Sequences(torch.utils.data.Dataset):
    def __init__(self, lengths):
        self.rows = sequences(lengths)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, row):
        return self.rows[row]


def predict():
    return nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))


def share_right(outputs, targets):
    """One number for the whole test set."""
    counted = targets != -100
    return ((outputs.argmax(-1) == targets) & counted).sum() / counted.sum()


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_metric_over_the_whole_test_set_gets_targets_as_batches_have_them(backend):
    """All sequences of the test set are padded to one length, which only `collate` knows."""
    data = {"train": Sequences([2, 5] * 40), "test": Sequences([3, 6] * 70)}
    task = Task(predict, data, metrics={"share": share_right, "accuracy": "accuracy"}, collate=pad)
    record = list(fedlga.rounds(Experiment(**SHORT, lr=0.5, backend=backend, workers=2), task=task))[-1]
    assert record.metrics["share"] == pytest.approx(record.metrics["accuracy"], abs=1e-6)


def test_a_metric_over_the_whole_test_set_refuses_batches_of_different_lengths_before_the_run():
    data = {"train": Sequences([2, 5] * 40), "test": Sequences([3] * 32 + [6] * 100)}
    text = refusal(Task(predict, data, metrics={"share": share_right}, collate=pad))
    assert "needs outputs and targets of one shape" in text


def test_label_smoothing_of_sequences():
    """By hand: chances 1/2, 1/4, 1/8, 1/8; smoothing by 0.2 gives every class 0.05 and the true one 0.8 more."""
    scores = -math.log(2) * torch.tensor([[[1.0, 2.0, 3.0, 3.0]] * 3])
    smoothed = sequence_cross_entropy(scores, torch.tensor([[0, 1, -100]]), label_smoothing=0.2)
    bits = [0.8 * 1 + 0.05 * (1 + 2 + 3 + 3), 0.8 * 2 + 0.05 * (1 + 2 + 3 + 3)]
    assert float(smoothed) == pytest.approx(math.log(2) * sum(bits) / 2, rel=1e-6)


def test_label_smoothing_is_for_training_alone():
    inputs = torch.tensor([[0, 1, 2]] * 20)
    targets = torch.tensor([[1, 2, -100]] * 20)
    task = Task(predict, (inputs, targets))
    plain, smooth = (
        next(iter(fedlga.rounds(Experiment(**SHORT, label_smoothing=s, lr=1e-9, backend="serial"), task=task)))
        for s in (0.0, 0.2)
    )
    assert plain.metrics["loss"] == pytest.approx(smooth.metrics["loss"], rel=1e-5), "the test loss is without it"
    assert plain.train_loss != pytest.approx(smooth.train_loss, rel=1e-3)


def test_label_smoothing_of_another_loss_is_refused():
    text = refusal(Task(lambda: nn.Linear(4, 1), (X, X[:, 0])), label_smoothing=0.1)
    assert text.startswith("label_smoothing: the task's loss is not the built-in cross-entropy")


def test_a_metric_that_is_not_a_number_later_leaves_a_summary_that_is_json(tmp_path):
    seen = []

    def broken(outputs, targets):
        seen.append(1)
        return math.nan if len(seen) > 5 else 1.0  # the first calls are the trial

    task = Task(lambda: nn.Linear(4, 1), (X, X[:, 0]), metrics={"broken": broken})
    fedlga.run(Experiment(**SHORT, backend="serial"), tmp_path / "r", task=task)

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    summary = json.loads((tmp_path / "r" / "summary.json").read_text(), parse_constant=refuse)
    assert summary["last_broken"] is summary["final_broken"] is None
    assert "broken is nan, and not a finite number" in fedlga.read(tmp_path / "r").records[-1].note


def test_a_file_called_like_a_library_beside_the_task(tmp_path):
    """Workers start in the folder of the task, and must import their own libraries all the same."""
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def data():\n    x = torch.randn(60, 3)\n    return x, x.sum(1)\n\n"
        "def model():\n    return nn.Linear(3, 1)\n"
    )
    (tmp_path / "numpy.py").write_text("raise ImportError('not the library')\n")
    command = [sys.executable, "-P", "-m", "fedlga", "run", "mine.py", "--rounds", "1", "--out", "r", "--workers", "2"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "r" / "summary.json").is_file()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("metric", "metrics"),
        ("Metrics", "metrics"),
        ("losses", "loss"),
        ("criterion", "loss"),
        ("collate_fn", "collate"),
        ("experiments", "experiment"),
    ],
)
def test_names_that_are_not_read_are_refused(tmp_path, wrong, right):
    from fedlga.learning.task import load_task

    text = f"def data(): ...\n\ndef model(): ...\n\ndef {wrong}(*given): ...\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(BadInput, match=f"task: mine.py has {wrong}, which is not read; it takes {right}"):
        load_task(str(tmp_path / "mine.py"))
    meant = "experiment = {}\n" if right == "experiment" else f"def {right}(*given): ...\n"
    (tmp_path / "mine.py").write_text(text + meant)
    load_task(str(tmp_path / "mine.py"))


def test_what_is_imported_is_not_taken_for_a_mistake(tmp_path):
    from fedlga.learning.task import load_task

    text = "from fedlga import Experiment, Metric\nimport metrics_of_mine as Metrics\n"
    (tmp_path / "metrics_of_mine.py").write_text("")
    (tmp_path / "mine.py").write_text(text + "def data(): ...\n\ndef model(): ...\n")
    load_task(str(tmp_path / "mine.py"))


def test_a_model_in_place_of_a_function_is_refused(tmp_path):
    from fedlga.learning.task import load_task

    (tmp_path / "mine.py").write_text("from torch import nn\nmodel = nn.Linear(2, 2)\n\ndef data(): ...\n")
    with pytest.raises(BadInput, match=r"mine.py has a Linear in place of model\(\)"):
        load_task(str(tmp_path / "mine.py"))


def test_yes_and_no_with_one_output_is_told_to_give_floats():
    text = refusal(Task(lambda: nn.Linear(4, 1), (X, classes()), nn.BCEWithLogitsLoss()))
    assert text.endswith("; y is whole numbers, so classes: give it as float")


def test_a_test_set_without_a_training_set_is_refused():
    text = refusal(Task(lambda: nn.Linear(4, 2), {"training": (X, classes()), "test": (X, classes())}))
    assert "got a dict with test and no train" in text
