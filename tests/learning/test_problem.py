"""A task and its data: which loss and metrics go with which targets, and what does not fit together."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedlga.core.settings import BadInput
from fedlga.learning.examples import LazyExamples, TensorExamples
from fedlga.learning.problem import (
    Problem,
    align_targets,
    fit_task,
    mean_squared_error,
    sequence_cross_entropy,
)
from fedlga.learning.reading import collate_pairs
from fedlga.learning.task import Task

X = torch.arange(12.0).reshape(4, 3) / 10
FLOATS = torch.tensor([0.5, -1.0, 2.0, 0.0])
CLASSES = torch.tensor([0, 1, 2, 1])


def fit(model, targets, x=X, *, label_smoothing=0.0, target=None, source="", **parts) -> Problem:
    task = Task(model, None, source=source, **parts)
    return fit_task(task, TensorExamples(x, targets), 0, label_smoothing=label_smoothing, target=target)


def refusal(*given, **parts) -> str:
    with pytest.raises(BadInput) as error:
        fit(*given, **parts)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


def linear(outputs: int):
    return lambda: nn.Linear(3, outputs)


class PerPosition(nn.Module):
    """Scores for each of five classes at each position of a sequence; or with the classes second, like images."""

    def __init__(self, *, second: bool = False) -> None:
        super().__init__()
        self.layer, self.second = nn.Linear(1, 5), second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.layer(x[..., None])
        return scores.movedim(-1, 1) if self.second else scores


class Summed(nn.Module):
    """One number for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).sum()


class Named(nn.Module):
    """Outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.layer(x)}


class Lower(nn.Module):
    """A layer of lower precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.to(self.layer.weight.dtype))


# Losses and metrics


@pytest.mark.parametrize(
    ("model", "targets", "loss", "metrics", "classes", "shape"),
    [
        (linear(3), CLASSES, functional.cross_entropy, ["accuracy"], 3, (3,)),
        (linear(1), FLOATS, mean_squared_error, ["rmse", "mae"], None, (1,)),
        (linear(1), FLOATS[:, None], mean_squared_error, ["rmse", "mae"], None, (1,)),
        (linear(2), X[:, :2], mean_squared_error, ["rmse", "mae"], None, (2,)),
        (
            PerPosition,
            torch.ones(4, 3, dtype=torch.int64),
            sequence_cross_entropy,
            ["accuracy", "perplexity"],
            None,
            (3, 5),
        ),
        (
            lambda: PerPosition(second=True),
            torch.ones(4, 3, dtype=torch.int64),
            sequence_cross_entropy,
            ["accuracy", "perplexity"],
            None,
            (5, 3),
        ),
    ],
    ids=["classes", "numbers", "a column of numbers", "two numbers", "sequences", "classes second"],
)
def test_the_targets_choose_loss_and_metrics(model, targets, loss, metrics, classes, shape):
    problem = fit(model, targets)
    assert problem.loss is loss
    assert problem.model.criterion is loss
    assert [m.name for m in problem.metrics] == metrics
    assert (problem.classes, problem.output_shape) == (classes, shape)


def test_a_loss_of_the_task_without_metrics_is_the_metric():
    problem = fit(linear(1), FLOATS, loss=nn.L1Loss())
    assert [(m.name, m.better) for m in problem.metrics] == [("loss", "lower")]
    assert [m.name for m in fit(linear(3), CLASSES, loss=functional.cross_entropy).metrics] == ["accuracy"]


def test_the_target_metric_comes_first():
    assert [m.name for m in fit(linear(1), FLOATS, target="mae").metrics] == ["mae", "rmse"]
    assert [m.name for m in fit(linear(1), FLOATS, metrics=lambda: ["mse", "mae"], target="mae").metrics] == [
        "mae",
        "mse",
    ]
    assert [m.name for m in fit(linear(1), FLOATS, metrics={"a": lambda o, t: 1.0}).metrics] == ["a"]


def test_sequence_cross_entropy_by_hand():
    """Even scores of five classes: ln 5 for each of the three that count."""
    outputs, targets = torch.zeros(2, 2, 5), torch.tensor([[0, 4], [-100, 2]])
    assert float(sequence_cross_entropy(outputs, targets)) == pytest.approx(math.log(5))
    assert float(sequence_cross_entropy(outputs.movedim(-1, 1), targets)) == pytest.approx(math.log(5))


@pytest.mark.parametrize("targets", [FLOATS, FLOATS[:, None]])
def test_a_column_is_never_broadcast(targets):
    """(n, 1) - (n,) would be n x n differences. By hand: outputs 1, 0, 2, 0 are off by 0.5, 1, 0 and 0."""
    outputs = torch.tensor([[1.0], [0.0], [2.0], [0.0]])
    assert float(mean_squared_error(outputs, targets)) == pytest.approx((0.25 + 1.0) / 4)
    assert float(mean_squared_error(outputs[:, 0], targets)) == pytest.approx((0.25 + 1.0) / 4)
    own = fit(linear(1), targets, loss=lambda o, t: (o - t).square().mean())
    assert float(own.loss(outputs, targets)) == pytest.approx((0.25 + 1.0) / 4)
    assert float(own.model.criterion(outputs, targets)) == pytest.approx((0.25 + 1.0) / 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda o, t: ((o - t) ** 2).mean(),  # would compare all with all
        lambda o, t: ((o.squeeze(1) - t) ** 2).mean(),  # brings them to one form itself
        lambda o, t: ((o - t.reshape(-1, 1)) ** 2).mean(),
        nn.MSELoss(),
        lambda o, t: nn.functional.mse_loss(o.squeeze(1), t),
    ],
)
def test_a_loss_of_the_user_s_own_never_compares_all_with_all(function):
    """(n, 1) outputs and (n,) targets, whatever the function does about it."""
    problem = fit(linear(1), FLOATS, loss=function, metrics={"mine": function, "mse": "mse"})
    inputs, targets = X, FLOATS
    outputs = problem.model.call(inputs).detach()
    expected = float(((outputs[:, 0] - targets) ** 2).mean())
    assert float(problem.loss(outputs, targets)) == pytest.approx(expected, rel=1e-5)
    assert problem.metrics[0].whole(outputs, targets) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [nn.MSELoss(reduction="sum"), lambda o, t: ((o - t[:, None]) ** 2).sum()])
def test_a_loss_that_is_a_sum_is_refused(loss):
    assert "loss() gives the sum over the examples" in refusal(linear(1), FLOATS, loss=loss)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_aligned_targets_have_the_form_of_the_outputs_and_their_own_numbers(sizes, data):
    """Dimensions of one are put in and left out at random."""
    ones = st.lists(st.booleans(), min_size=len(sizes), max_size=len(sizes))
    outputs_shape, targets_shape = (
        [n for size, extra in zip(sizes, data.draw(ones), strict=True) for n in ([1, size] if extra else [size])]
        for _ in range(2)
    )
    targets = torch.arange(math.prod(sizes)).float().reshape(targets_shape)
    aligned = align_targets(torch.zeros(outputs_shape), targets)
    assert list(aligned.shape) == outputs_shape
    assert aligned.flatten().tolist() == targets.flatten().tolist()


def test_classes_and_other_forms_are_not_reshaped():
    assert align_targets(torch.zeros(4, 1), CLASSES) is CLASSES
    assert align_targets(torch.zeros(2, 2), FLOATS) is FLOATS
    assert align_targets({"a": torch.zeros(4, 1)}, FLOATS) is FLOATS


@pytest.mark.parametrize("loss", [nn.MSELoss, nn.MSELoss(), functional.mse_loss], ids=["class", "instance", "function"])
def test_losses_of_torch(loss):
    problem = fit(linear(1), FLOATS, loss=loss)
    assert float(problem.loss(torch.zeros(4, 1), FLOATS)) == pytest.approx((0.25 + 1 + 4) / 4)


def test_a_loss_with_weights_of_its_own():
    """Class 2 counts twice: (ln 3 + ln 3 + 2 ln 3 + ln 3) / 5 for even scores."""
    problem = fit(linear(3), CLASSES, loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 1.0, 2.0])))
    assert float(problem.loss(torch.zeros(4, 3), CLASSES)) == pytest.approx(math.log(3))
    assert problem.classes == 3


def test_label_smoothing_is_for_training_alone():
    problem = fit(linear(3), CLASSES, label_smoothing=0.3)
    scores = torch.tensor([[2.0, 0.0, 0.0]])
    chances = torch.log_softmax(scores, 1)[0]
    # 0.7 of the label is kept, 0.1 goes to each class.
    smoothed = -(0.8 * chances[0] + 0.1 * chances[1] + 0.1 * chances[2])
    assert float(problem.model.criterion(scores, torch.tensor([0]))) == pytest.approx(float(smoothed))
    assert float(problem.loss(scores, torch.tensor([0]))) == pytest.approx(float(-chances[0]))
    assert "label_smoothing: the task's loss is not" in refusal(linear(1), FLOATS, label_smoothing=0.1)


class NeedsArguments(nn.Module):
    def __init__(self, weight) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("mse", ["loss is a str", "a torch loss or a function of outputs and targets"]),
        (lambda o, t: (o - t).square(), ["loss() gave float32 of 2 x 2", "one number, the mean loss"]),
        (lambda o, t: 1.0, ["loss() gave float", "one number"]),
        (lambda o, t: None, ["loss() gave NoneType"]),
        (lambda o, t: (o - t).square().mean().detach(), ["loss() cannot be differentiated"]),
        (lambda o, t: (o > t).sum(), ["loss() cannot be differentiated"]),
        (lambda o: o.mean(), ["loss() does not take outputs float32 of 2 x 1 and targets float32 of 2"]),
        (lambda o, t: {}[0], ["loss() does not take", "KeyError"]),
        (nn.CrossEntropyLoss(weight=torch.ones(7)), ["loss() does not take"]),
        (NeedsArguments, ["loss", "weight"]),
    ],
    ids=range(10),
)
def test_a_loss_that_does_not_fit_is_refused_in_one_line(loss, words):
    text = refusal(linear(1), FLOATS, loss=loss)
    for word in words:
        assert word in text


def test_a_loss_that_would_broadcast_is_refused():
    """torch only warns of it."""
    assert "loss() does not take outputs float32 of 2 x 2" in refusal(linear(2), FLOATS, loss=nn.MSELoss())


# Models


def raising():
    raise ValueError("no such file\nand a second line")


class InTraining(nn.Linear):
    """Works without gradients alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            raise NotImplementedError("no backward")
        return super().forward(x)


@pytest.mark.parametrize(
    ("model", "targets", "words"),
    [
        (raising, FLOATS, ["model() failed: ValueError: no such file (test_problem.py, line "]),
        (lambda: 3, FLOATS, ["model() gave a int; it takes an nn.Module"]),
        (lambda: nn.Linear, FLOATS, ["model() gave a type; it takes an nn.Module"]),
        (nn.Flatten, FLOATS, ["model() has no trainable parameters"]),
        (lambda: nn.Linear(3, 1).requires_grad_(False), FLOATS, ["model() has no trainable parameters"]),
        (lambda: nn.Linear(3, 1).double(), FLOATS, ["parameters of torch.float64", "it takes torch.float32"]),
        (lambda: nn.Linear(5, 1), FLOATS, ["model() does not take these inputs, float32 of 3 each"]),
        (Summed, FLOATS, ["gives float32 of no dimension for 2 examples", "one output an example"]),
        (Named, FLOATS, ["{logits: float32 of 4 x 1}", "without a loss(outputs, targets)"]),
        (linear(2), FLOATS, ["gives float32 of 4 x 2 for targets float32 of 4", "as many numbers"]),
        (linear(1), CLASSES, ["whole numbers, so classes", "give y as float"]),
        (linear(3), CLASSES[:, None], ["outputs are float32 of 4 x 3 for targets int64 of 4 x 1"]),
        (linear(2), CLASSES, ["a label of 2, and model() scores 2 classes", "labels from 0 to 1"]),
        (linear(3), CLASSES - 1, ["a label of -1, and model() scores 3 classes"]),
        (PerPosition, torch.full((4, 3), 5), ["a label of 5, and model() scores 5 classes", "-100 for none"]),
        (PerPosition, torch.full((4, 3), -1), ["a label of -1"]),
        (lambda: InTraining(3, 1), FLOATS, ["model()", "no backward"]),
    ],
    ids=range(17),
)
def test_a_model_that_does_not_fit_is_refused_in_one_line(model, targets, words):
    text = refusal(model, targets)
    for word in words:
        assert word in text


def test_a_message_begins_with_the_task_s_file():
    assert refusal(raising, FLOATS, source="/a/b/mine.py").startswith("mine.py: model() failed: ")
    assert refusal(linear(2), CLASSES, source="/a/b/mine.py").startswith("mine.py: data() gave a label of 2")
    assert refusal(linear(2), FLOATS, loss=nn.MSELoss(), source="/a/b/mine.py").startswith("mine.py: loss() does not")
    metrics = {"metrics": {"f1": lambda o, t: "x"}, "source": "/a/b/mine.py"}
    assert refusal(linear(1), FLOATS, **metrics).startswith("mine.py: metrics(): 'f1' gave a str")
    wrong = {"metrics": raising, "source": "/a/b/mine.py"}
    assert refusal(linear(1), FLOATS, **wrong).startswith("mine.py: metrics() failed: ValueError: no such file")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_lower_precision_is_taken_and_kept_as_float32(dtype):
    problem = fit(lambda: Lower(dtype), FLOATS)
    assert problem.model.vector.dtype == torch.float32
    assert {p.dtype for p in problem.model.module.parameters()} == {dtype}
    problem.model.load(torch.tensor([1.0, 2.0, 3.0, 1 / 3]))
    assert problem.model.module.layer.bias.item() == torch.tensor(1 / 3).to(dtype).item(), "a rounded copy"
    assert problem.model.vector[3].item() == pytest.approx(1 / 3, abs=1e-8)


def test_outputs_of_any_form_go_with_a_loss_of_the_task():
    problem = fit(Named, FLOATS, loss=lambda o, t: (o["logits"][:, 0] - t).square().mean())
    assert problem.output_shape is None
    assert [m.name for m in problem.metrics] == ["loss"]


def test_labels_that_a_loss_of_the_task_may_take_are_left_to_it():
    problem = fit(linear(3), CLASSES + 7, loss=lambda o, t: o.square().mean())
    assert problem.classes is None


def test_the_weights_are_those_of_the_seed_and_the_caller_s_draws_go_on():
    torch.manual_seed(5)
    first = fit(linear(1), FLOATS).model.vector
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(1))
    assert torch.equal(first, fit(linear(1), FLOATS).model.vector)
    other = fit_task(Task(linear(1), None), TensorExamples(X, FLOATS), 1).model.vector
    assert not torch.equal(first, other)


def test_a_trial_leaves_the_model_as_it_was_made():
    """BatchNorm's statistics and counters would show a forward pass in training mode."""
    problem = fit(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)), FLOATS)
    norm = problem.model.module[1]
    assert norm.running_mean.tolist() == [0.0] * 4
    assert norm.num_batches_tracked.item() == 0
    assert problem.model.module.training
    assert problem.model.has_changing_buffers
    assert problem.model.needs_pairs
    assert not fit(linear(1), FLOATS).model.needs_pairs


class Two(nn.Module):
    """Takes two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.layer(left - right)


@pytest.mark.parametrize("inputs", [(X, 2 * X), {"right": 2 * X, "left": X}], ids=["tuple", "dict"])
def test_several_inputs_are_spread_over_the_arguments(inputs):
    problem = fit(Two, FLOATS, x=inputs)
    assert torch.equal(problem.model.call(inputs), problem.model.module.layer(-X))
    assert "does not take these inputs, {other: float32 of 3} each" in refusal(Two, FLOATS, x={"other": X})


def test_lazy_examples_and_single_ones():
    dataset = [(X[i], FLOATS[i]) for i in range(4)]
    problem = fit_task(Task(linear(1), None), LazyExamples(dataset, collate_pairs), 0)
    assert [m.name for m in problem.metrics] == ["rmse", "mae"]
    assert fit(linear(1), FLOATS[:1], x=X[:1]).output_shape == (1,)
