"""Metrics by hand, the user's own, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.backend import Scores
from fedlga.core.settings import BadInput
from fedlga.learning.evaluation import Evaluator
from fedlga.learning.examples import TensorExamples
from fedlga.learning.metrics import BUILT_IN, IGNORED, LOWER_IS_BETTER, Metric, collect_metrics

# Three examples, two classes: predicted 1, 0, 0.
SCORES, LABELS = torch.tensor([[0.0, 1.0], [2.0, 1.0], [3.0, 0.0]]), torch.tensor([1, 1, 0])
NUMBERS, WANTED = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.0], [2.0], [1.0]])  # off by 1, 0 and 3


def bind(given, outputs=SCORES, targets=LABELS):
    return collect_metrics(given, outputs, targets)


def measure(metric, outputs, targets) -> float:
    """Return a metric over all examples, as an evaluation makes it of the scores."""
    values = torch.zeros(0, len(targets), 2) if metric.each is None else metric.each(outputs, targets)[None]
    evaluator = Evaluator([metric], TensorExamples(outputs, targets), [])
    return evaluator.evaluate(Scores(values, [(0.0, 1.0)], outputs))[metric.name]


def refusal(given, outputs=SCORES, targets=LABELS) -> str:
    with pytest.raises(BadInput) as error:
        bind(given, outputs, targets)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).startswith("metrics")
    return str(error.value)


# Built-in ones


def one_hot(rows, classes=3) -> torch.Tensor:
    """Return scores that predict these classes."""
    return torch.nn.functional.one_hot(torch.tensor(rows), classes).float()


@pytest.mark.parametrize(
    ("outputs", "targets", "value"),
    [
        (SCORES, LABELS, 2 / 3),
        # Sequences: 1 of 2 counted ones, then 2 of 3. All positions count alike: 3 / 5, not the mean of 1/2 and 2/3.
        (one_hot([[0, 1, 2], [2, 2, 1]]), torch.tensor([[0, 2, IGNORED], [2, 2, 0]]), 3 / 5),
        # Images, a class a pixel, with the classes in the second dimension.
        (one_hot([[[0, 1]], [[2, 2]]]).movedim(-1, 1), torch.tensor([[[0, 0]], [[2, 2]]]), 3 / 4),
        # Several labels: a score above 0 says yes. Right: 2 of 3, then 1 of 3.
        (torch.tensor([[1.0, -1.0, 5.0], [-1.0, -2.0, 0.0]]), torch.tensor([[1.0, 1, 1], [1.0, 1, 0]]), 3 / 6),
    ],
    ids=["one label", "sequences", "pixels", "several labels"],
)
def test_accuracy_by_hand(outputs, targets, value):
    (metric,) = bind("accuracy", outputs, targets)
    assert measure(metric, outputs, targets) == pytest.approx(value)
    assert metric.better == "higher"


def test_a_sequence_without_anything_to_count_counts_for_nothing():
    targets = torch.full((2, 3), IGNORED)
    (metric,) = bind("accuracy", one_hot([[0, 0, 0]] * 2), targets)
    assert measure(metric, one_hot([[0, 0, 0]] * 2), targets) is None


def test_perplexity_by_hand():
    """Chances of 1/4, 1/2 and (not counted) 1/2: the exponential of (ln 4 + ln 2) / 2 is the root of 8."""
    outputs = torch.log(torch.tensor([[[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]]]))
    targets = torch.tensor([[0, 1, IGNORED]])
    (metric,) = bind(["perplexity"], outputs, targets)
    assert measure(metric, outputs, targets) == pytest.approx(math.sqrt(8))
    assert metric.better == "lower"
    single = torch.log(torch.tensor([[0.25, 0.75]]))
    assert measure(bind("perplexity", single, torch.tensor([0]))[0], single, torch.tensor([0])) == pytest.approx(4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("mse", 10 / 3), ("rmse", math.sqrt(10 / 3)), ("mae", 4 / 3)],  # 1, 0 and 3: squares 1, 0, 9
)
def test_distances_by_hand(name, value):
    (metric,) = bind(name, NUMBERS, WANTED)
    assert measure(metric, NUMBERS, WANTED) == pytest.approx(value)
    assert metric.better == "lower"
    # Two numbers an example: the mean is over all of them.
    both = measure(metric, torch.cat([NUMBERS, WANTED], 1), torch.cat([WANTED, WANTED], 1))
    assert both == pytest.approx(math.sqrt(10 / 6) if name == "rmse" else value / 2)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20))
def test_distances_agree_with_each_other(errors):
    outputs = torch.tensor(errors)[:, None]
    mse, rmse, mae = (
        measure(bind(name, outputs, 0 * outputs)[0], outputs, 0 * outputs) for name in ("mse", "rmse", "mae")
    )
    assert rmse == pytest.approx(math.sqrt(mse))
    assert mae <= rmse * (1 + 1e-6) + 1e-9  # Jensen
    assert rmse <= max(map(abs, errors)) * (1 + 1e-6) + 1e-9


def test_a_built_in_may_have_another_name():
    (metric,) = bind({"distance": "mae"}, NUMBERS, WANTED)
    assert (metric.name, metric.better) == ("distance", "lower")
    assert [m.name for m in bind({"mse": None, "rmse": None}, NUMBERS, WANTED)] == ["mse", "rmse"]


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "words"),
    [
        ("mse", SCORES, LABELS, ["float32 of 3 x 2", "int64 of 3", "same shape"]),
        ("perplexity", NUMBERS, WANTED, ["takes targets that are classes"]),
        ("accuracy", {"a": SCORES}, LABELS, ["tensors", "{a: float32 of 3 x 2}"]),
        ("accuracy", SCORES, WANTED, ["accuracy"]),  # broadcast: 3 x 2 answers for 3 x 1 questions
    ],
)
def test_a_built_in_that_does_not_fit_is_named(name, outputs, targets, words):
    text = refusal(name, outputs, targets)
    for word in words:
        assert word in text


def test_numbers_in_another_form_are_brought_to_one():
    """(n, 1) and (n,): torch would compare each of three with each of three."""
    (mae,) = bind("mae", NUMBERS, WANTED)
    assert measure(mae, NUMBERS, WANTED[:, 0]) == measure(mae, NUMBERS, WANTED)


def test_accuracy_of_one_score_for_yes_or_no():
    # Scores 2, -1, 3, -4 say yes, no, yes, no; yes, no, no, yes is true: two of four.
    scores, labels = torch.tensor([[2.0], [-1.0], [3.0], [-4.0]]), torch.tensor([1, 0, 0, 1])
    (accuracy,) = bind("accuracy", scores, labels)
    assert measure(accuracy, scores, labels) == measure(accuracy, scores[:, 0], labels) == 0.5
    assert measure(accuracy, scores[:, 0], labels.float()) == 0.5


def test_the_classes_of_images_are_in_the_second_dimension():
    """Four classes, 4 x 4 pixels: the last dimension has the same size."""
    outputs = torch.zeros(2, 4, 4, 4)
    outputs[:, 3] = 1.0  # class 3 everywhere
    (accuracy,) = bind("accuracy", outputs, torch.full((2, 4, 4), 3))
    assert measure(accuracy, outputs, torch.full((2, 4, 4), 3)) == 1.0


# The user's own


def largest_error(outputs, targets):
    return (outputs - targets).abs().max()


def errors(outputs, targets):
    return (outputs - targets).abs()[:, 0]


def test_a_function_of_the_whole_set_is_not_averaged():
    (metric,) = bind({"largest": largest_error}, NUMBERS, WANTED)
    assert metric.each is None
    assert metric.whole(NUMBERS, WANTED) == 3.0
    # The mean over pieces of one and two would be (1 + 3) / 2.
    assert measure(metric, NUMBERS, WANTED) == 3.0


def test_one_value_an_example_is_averaged():
    (metric,) = bind({"mine": errors}, NUMBERS, WANTED)
    assert metric.whole is None
    assert measure(metric, NUMBERS, WANTED) == pytest.approx(4 / 3)
    right = bind({"right": lambda o, t: o.argmax(1) == t})[0]
    assert measure(right, SCORES, LABELS) == pytest.approx(2 / 3), "yes and no are 1 and 0"


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), torch.tensor(2), torch.tensor([2.0])])
def test_one_number_of_any_kind(value):
    (metric,) = bind({"two": lambda outputs, targets: value})
    assert metric.whole(SCORES, LABELS) == 2.0


@pytest.mark.parametrize("name", sorted(LOWER_IS_BETTER - {"loss"}))
def test_known_names_have_the_direction_that_everybody_expects(name):
    (metric,) = bind({name: lambda outputs, targets: 1.0})
    assert metric.better == "lower"


def test_the_direction_can_be_given():
    low, high, unknown = bind(
        {
            "regret": Metric(lambda o, t: 1.0, better="lower"),
            "mae": Metric(lambda o, t: 1.0, better="higher"),
            "score": lambda o, t: 1.0,
        }
    )
    assert (low.better, high.better, unknown.better) == ("lower", "higher", "higher")
    with pytest.raises(BadInput, match="Metric: better is 'less'; it takes 'higher' or 'lower'"):
        Metric(len, better="less")


def test_a_built_in_with_another_direction():
    """`Metric` takes a function, and a built-in has a name."""
    try:
        (metric,) = bind({"accuracy": Metric("accuracy", better="lower")})
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert metric.better == "lower"


def test_torchmetrics_say_their_direction():
    torchmetrics = pytest.importorskip("torchmetrics")
    given = {
        "f1": torchmetrics.classification.MulticlassF1Score(2, average="micro"),
        "error": torchmetrics.MeanSquaredError(),
    }
    (f1,) = bind({"f1": given["f1"]})
    assert f1.better == "higher"
    assert f1.each is None
    assert f1.whole(SCORES, LABELS) == pytest.approx(2 / 3)
    assert f1.whole(SCORES[:1], LABELS[:1]) == 1.0, "nothing of an earlier evaluation is left"
    (far,) = bind({"far": given["error"]}, NUMBERS, WANTED)
    assert far.better == "lower", "whatever its name"
    assert far.whole(NUMBERS, WANTED) == pytest.approx(10 / 3)
    (turned,) = bind({"far": Metric(given["error"], better="lower")}, NUMBERS, WANTED)
    assert turned.better == "lower"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (3, ["got int", "it takes a dict of names"]),
        ({}, ["got none", "it takes a dict of names"]),
        ([], ["got none"]),
        (["accuracy", 3], ["got list"]),
        (["acuracy"], ["no built-in 'acuracy'", "did you mean 'accuracy'?"]),
        ({"a b": len}, ["the name 'a b'", "a word of letters"]),
        ({3: len}, ["the name 3"]),
        ({"": len}, ["the name ''"]),
        ({"loss": len}, ["the name 'loss'", "other than 'loss'"]),
        ({"f1_slow": len}, ["the name 'f1_slow'", "_slow and _worst are for devices"]),
        ({"f1_worst": len}, ["the name 'f1_worst'"]),
        ({"f1": 3}, ["'f1' is a int", "a function or a torchmetrics metric"]),
        ({"f1": lambda o, t: "0.5"}, ["'f1' gave a str, not a number"]),
        ({"f1": lambda o, t: True}, ["'f1' gave a bool"]),
        ({"f1": lambda o, t: None}, ["'f1' gave a NoneType"]),
        ({"f1": lambda o, t: math.nan}, ["'f1' gave nan", "one finite number"]),
        ({"f1": lambda o, t: math.inf}, ["'f1' gave inf"]),
        ({"f1": lambda o, t: torch.ones(2)}, ["'f1' gave float32 of 2", "one an example"]),
        ({"f1": lambda o, t: torch.ones(3, 2)}, ["'f1' gave float32 of 3 x 2"]),
        ({"f1": lambda o, t: 1 / 0}, ["'f1' failed for outputs float32 of 3 x 2 and targets int64 of 3: ZeroDivision"]),
        ({"f1": lambda o: 1}, ["'f1' failed", "TypeError"]),
        ({"f1": lambda o, t: torch.tensor([1.0, math.nan, 1.0])}, ["'f1' gave nan"]),
    ],
    ids=range(22),
)
def test_what_is_not_a_metric_is_refused_in_one_line(given, words):
    text = refusal(given)
    for word in words:
        assert word in text


def test_built_in_names():
    assert set(BUILT_IN) == {"accuracy", "perplexity", "mse", "rmse", "mae"}
