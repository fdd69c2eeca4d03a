"""Evaluation: scores in pieces and whole, and what they mean for all, for slow devices and for the worst one."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from data_for_tests import tiny_cifar
from fedlga.core.backend import Scores
from fedlga.core.process import one_thread
from fedlga.learning import evaluation
from fedlga.learning.evaluation import SMALL_BATCH, Evaluator, TestSet, join_scores
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.metrics import BUILT_IN, NamedMetric
from fedlga.learning.named import named_task
from fedlga.learning.problem import Problem, fit_task

ACCURACY = BUILT_IN["accuracy"]
# Class 0: 1 of 4 right, class 1: both, class 2: 1 of 2.
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
EXAMPLES = TensorExamples(torch.zeros(8, 1), LABELS)
RIGHT = torch.tensor([True, False, False, False, True, True, True, False])
SCORES = Scores(torch.stack([RIGHT.float(), torch.ones(8)], 1)[None], [(2.0, 4), (1.0, 2), (1.0, 2)])
# Device 0 holds class 0 alone, device 1 classes 1 and 2 in equal parts, device 2 mostly class 0.
HELD = torch.tensor([[2, 0, 0], [0, 1, 1], [3, 1, 0]])


def evaluate(slow, held):
    return Evaluator([ACCURACY], EXAMPLES, slow, held=held).evaluate(SCORES)


def test_an_evaluation_by_hand():
    found = evaluate([0, 2], HELD)
    assert found.keys() == {"accuracy", "loss", "accuracy_slow", "accuracy_worst"}
    assert found["accuracy"] == 4 / 8
    assert found["loss"] == 4.0 / 8
    # Together the slow devices hold 5 of class 0 and 1 of class 1: 5/6 * 1/4 + 1/6 * 1
    assert found["accuracy_slow"] == pytest.approx(5 / 24 + 1 / 6)
    # Device 0: 1/4. Device 1: (1 + 1/2) / 2. Device 2: 3/4 * 1/4 + 1/4 * 1.
    assert found["accuracy_worst"] == pytest.approx(0.25)


def test_without_slow_devices_or_known_devices_there_is_nothing_to_say_of_them():
    assert evaluate([], HELD)["accuracy_slow"] is None
    unknown = evaluate([], None)
    assert (unknown["accuracy"], unknown["accuracy_slow"], unknown["accuracy_worst"]) == (0.5, None, None)


def test_a_class_that_is_not_tested_does_not_count():
    # Device 1 holds classes 1 and 3, and no test example is of class 3: what counts is class 1, as on device 0.
    held = torch.tensor([[0, 4, 0, 0], [0, 1, 0, 1]])
    assert evaluate([], held)["accuracy_worst"] == evaluate([], held[:1])["accuracy_worst"] == pytest.approx(1.0)
    nothing = torch.tensor([[0, 0, 0, 2]])
    assert evaluate([0], nothing)["accuracy_worst"] is None
    assert evaluate([0], nothing)["accuracy_slow"] is None


class Fixed(nn.Module):
    """Scores class 1 for everything, by as much as its one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.zeros(len(images)), self.w.expand(len(images))], 1)


def test_scores_by_hand():
    labels = torch.tensor([0, 1, 1])
    model = FlatModel(Fixed())
    problem = Problem(model, model.criterion, [ACCURACY], 2, (2,))
    test_set = TestSet(problem, TensorExamples(torch.zeros(3, 1, 2, 2), labels))
    scores = test_set.score(torch.tensor([math.log(3.0)]))  # class 1 has a chance of 3/4
    assert scores.values.tolist() == [[[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]]]
    assert scores.losses == [(pytest.approx(math.log(4) + 2 * math.log(4 / 3), rel=1e-5), 3)]
    assert len(test_set) == 3
    assert model.module.training, "it is ready for training again"


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_pieces_give_the_bits_of_the_whole(name, monkeypatch):
    """The pool divides an evaluation between its workers, at the borders of batches."""
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", 50)
    data = tiny_cifar(train=10, test=330)
    examples = TensorExamples(data.test_images, data.test_labels)
    problem = fit_task(named_task(name, data.shape, 10), examples, 0)
    test_set = TestSet(problem, examples)
    assert test_set.batch == {"mlp": 50, "cnn": SMALL_BATCH}[name]
    w = problem.model.vector.clone()
    with one_thread():
        whole = test_set.score(w)
        pieces = [test_set.score(w, None, start, end) for start, end in pairwise([0, 100, 200, 330])]
    assert whole.values.shape == (1, 330, 2)
    assert torch.equal(torch.cat([piece.values for piece in pieces], 1), whole.values)
    assert [loss for piece in pieces for loss in piece.losses] == whole.losses
    joined = join_scores(pieces)
    assert torch.equal(joined.values, whole.values)
    assert joined.losses == whole.losses


def score_loss(loss, targets, classes=None, ranges=None, slow=()):
    """Return the loss metrics of outputs 0 under some weights: `Fixed` scores 0 for class 0, and w for class 1."""
    model = FlatModel(Fixed())
    metric = NamedMetric("loss", higher_is_better=False)
    examples = TensorExamples(torch.zeros(len(targets), 1), targets)
    test_set = TestSet(Problem(model, loss, [metric], classes, (2,)), examples, ranges=ranges)
    held = None if classes is None else torch.tensor([[4, 0], [0, 4], [2, 2]])
    evaluator = Evaluator([metric], examples, slow, held=held, ranges=ranges)
    return evaluator.evaluate(test_set.score(torch.tensor([math.log(3.0)])))


def own_loss(outputs, targets):
    """The same as the built-in cross-entropy, but nobody can know."""
    return functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("loss", [functional.cross_entropy, own_loss])
def test_the_loss_of_slow_and_worst_devices_by_hand(loss):
    """Class 0 has a chance of 1/4, class 1 of 3/4: losses of log 4 and log 4/3."""
    targets, ranges = torch.tensor([0, 1, 1, 0, 1, 0]), [(0, 3), (3, 4), (4, 6)]
    right, wrong = math.log(4 / 3), math.log(4)
    found = score_loss(loss, targets, ranges=ranges, slow=[0, 1])
    assert found["loss"] == pytest.approx((3 * right + 3 * wrong) / 6, rel=1e-5)
    assert found["loss_slow"] == pytest.approx((2 * right + 2 * wrong) / 4, rel=1e-5), "examples 0 to 3"
    assert found["loss_worst"] == pytest.approx(wrong, rel=1e-5), "device 1"


@pytest.mark.parametrize("loss", [functional.cross_entropy, own_loss])
def test_the_loss_of_slow_and_worst_devices_by_their_classes(loss):
    """Device 0 holds class 0 alone, device 1 class 1, device 2 both."""
    right, wrong = math.log(4 / 3), math.log(4)
    found = score_loss(loss, torch.tensor([0, 1, 1]), classes=2, slow=[1, 2])
    assert found["loss_slow"] == pytest.approx((6 * right + 2 * wrong) / 8, rel=1e-5)
    assert found["loss_worst"] == pytest.approx(wrong, rel=1e-5), "device 0"


def test_a_loss_of_one_s_own_is_nobody_s_without_devices_or_classes():
    found = score_loss(lambda o, t: (o.sum(1) - t).square().mean(), torch.tensor([0.0, 1.0]))
    assert found["loss"] is not None
    assert found["loss_slow"] is found["loss_worst"] is None


@pytest.mark.parametrize("batch", [2, 3, 1000])
def test_devices_losses_do_not_depend_on_the_borders_of_batches(batch, monkeypatch):
    monkeypatch.setattr(evaluation, "EVALUATION_BATCH", batch)
    targets, ranges = torch.tensor([0, 1, 1, 0, 1, 0, 0]), [(0, 3), (3, 3), (3, 7)]
    found = score_loss(own_loss, targets, ranges=ranges, slow=[2])
    assert found["loss_slow"] == pytest.approx((math.log(4 / 3) + 3 * math.log(4)) / 4, rel=1e-5)
