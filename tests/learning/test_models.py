"""The models: those of the papers, and what is asked of a user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import models_for_tests
from fedlga.core.settings import BadInput
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.models import cnn, mlp, resnet20
from fedlga.learning.named import make_model
from fedlga.learning.problem import Problem, fit_task
from fedlga.learning.reading import read_data
from fedlga.learning.task import Task


def fit_own(make, images, labels) -> Problem:
    """Return the fitted task of a user who brings a model and data."""
    task = Task(make, (images, labels))
    return fit_task(task, read_data(task, task.data).train, 0)


def test_the_papers_mlp():
    # 784 x 400 + 400 + 400 x 10 + 10
    assert len(make_model("mlp", (1, 28, 28), 10, 0).vector) == 318_010


def test_resnet20_has_the_parameters_of_the_original():
    # He et al. count 0.27 million with BatchNorm's two a channel, as many as GroupNorm's: 269,722 for 10 classes
    # with option A's shortcuts, which have none.
    assert len(make_model("resnet20", (3, 32, 32), 10, 0).vector) == 269_722
    norms = [m for m in resnet20((3, 32, 32), 10).modules() if isinstance(m, torch.nn.GroupNorm)]
    assert len(norms) == 19
    assert {m.num_groups for m in norms} == {2}


@pytest.mark.parametrize(
    ("make", "shape"), [(mlp, (1, 28, 28)), (cnn, (1, 28, 28)), (cnn, (3, 32, 32)), (cnn, (1, 8, 8))]
)
def test_models_give_one_score_a_class(make, shape):
    assert make(shape, 7)(torch.zeros(2, *shape)).shape == (2, 7)


def test_parameters_and_gradients_are_views_of_one_vector():
    model = FlatModel(mlp((1, 8, 8), 10))
    model.vector.zero_()
    assert all((p == 0).all() for p in model.module.parameters())
    model.module(torch.randn(4, 1, 8, 8)).sum().backward()
    assert model.gradient.abs().sum() > 0
    assert all(p.grad.data_ptr() >= model.gradient.data_ptr() for p in model.module.parameters())


@pytest.mark.parametrize("make", [mlp, cnn, resnet20])
def test_a_flat_model_computes_what_the_module_computes(make):
    """Also with convolutions, whose kernels are in another order in the vector than in the module."""
    plain, flat = make((3, 8, 8), 10), make((3, 8, 8), 10)
    flat.load_state_dict(plain.state_dict())
    model = FlatModel(flat)
    images, labels = torch.randn(4, 3, 8, 8), torch.tensor([1, 2, 3, 4])
    for module in (plain, flat):
        torch.nn.functional.cross_entropy(module(images), labels).backward()
    for p, q in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    model.vector.add_(model.gradient, alpha=-0.1)
    for p, q in zip(plain.parameters(), flat.parameters(), strict=True):
        torch.testing.assert_close(p - 0.1 * p.grad, q, rtol=1e-4, atol=1e-5)


def test_the_seed_decides_the_starting_weights_and_torchs_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    a, b, c = (make_model("mlp", (1, 8, 8), 10, seed).vector for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_a_users_own_model():
    model = make_model("models_for_tests:with_dropout", (1, 8, 8), 10, 0)
    assert len(model.vector) == 64 * 16 + 16 + 16 * 10 + 10


def test_a_model_that_cannot_take_channels_last_trains_too():
    model = make_model("models_for_tests:with_a_view", (1, 8, 8), 10, 0)
    for _ in range(2):
        model.module(torch.randn(3, 1, 8, 8)).sum().backward()
    assert model.gradient.abs().sum() > 0
    assert torch.equal(model.vector[:36], model.module.convolution.weight.reshape(-1))


def test_frozen_layers_are_not_in_the_vector():
    model = make_model("models_for_tests:with_a_frozen_layer", (1, 8, 8), 10, 0)
    assert len(model.vector) == 16 + 16 * 10 + 10


def test_constant_buffers_work():
    assert make_model("models_for_tests:with_constant_buffer", (1, 8, 8), 10, 0).read_buffers() is None


def test_buffers_that_training_changes_are_a_vector_beside_the_weights():
    """BatchNorm of 16 features: a running mean and a running variance. Its counter is not averaged."""
    model = make_model("models_for_tests:with_batch_norm", (1, 8, 8), 10, 0)
    assert len(model.vector) == 64 * 16 + 16 + 16 + 16 + 16 * 10 + 10
    norm = model.module[2]
    assert model.read_buffers().tolist() == [0.0] * 16 + [1.0] * 16
    assert (norm.num_batches_tracked, norm.training) == (0, True), "to be tried out changes nothing"
    # A batch whose features have mean 2 and variance 4/3 (unbiased, of four) moves both by a tenth: momentum 0.1.
    hidden = torch.tensor([1.0, 1.0, 3.0, 3.0])[:, None].expand(4, 16)
    norm(hidden)
    expected = torch.tensor([0.2] * 16 + [0.9 + 0.1 * 4 / 3] * 16)
    torch.testing.assert_close(model.read_buffers(), expected)
    model.load(model.vector.clone(), torch.arange(32.0))
    assert norm.running_mean.tolist() == list(range(16))
    assert norm.running_var.tolist() == list(range(16, 32))
    assert norm.num_batches_tracked == 0, "a counter begins again"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("too_few_scores", r"model: 'models_for_tests:too_few_scores' scores 9 classes, and the dataset has 10"),
        ("wrong_shape", r"model\(\) does not take these inputs, float32 of 1 x 8 x 8 each \(RuntimeError: mat1"),
        ("doubles", "has parameters of torch.float64; it takes torch.float32, torch.float16 or torch.bfloat16"),
        ("nothing_to_train", "has no trainable parameters"),
        ("not_a_module", "gave a str; it takes an nn.Module"),
        ("not_there", "cannot import 'models_for_tests:not_there'"),
    ],
)
def test_a_bad_model_is_refused(name, said):
    with pytest.raises(BadInput, match=said) as caught:
        make_model(f"models_for_tests:{name}", (1, 8, 8), 10, 0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("wrong_shape", r"model\(\) does not take these inputs, float32 of 1 x 8 x 8 each"),
        ("too_few_scores", r"data\(\) gave a label of 9, and model\(\) scores 9 classes; it takes labels from 0 to 8"),
        ("not_a_module", r"model\(\) gave a str"),
    ],
)
def test_a_bad_model_that_comes_with_data_is_refused(name, said):
    make = getattr(models_for_tests, name)
    with pytest.raises(BadInput, match=said) as caught:
        fit_own(lambda: make((1, 8, 8), 10), torch.rand(5, 1, 8, 8), torch.tensor([0, 9, 2, 3, 4]))
    assert "\n" not in str(caught.value)


def test_a_model_with_batch_norm_that_comes_with_data_has_buffers():
    make = models_for_tests.with_batch_norm
    fitted = fit_own(lambda: make((1, 8, 8), 10), torch.zeros(5, 1, 8, 8), torch.arange(5))
    assert len(fitted.model.read_buffers()) == 32, "found with images of zeros, too"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.tensor([0, 1]), "got x with float32 of 3 x 4 and y with int64 of 2; it takes as many examples in both"),
        (torch.tensor([]), "got x with float32 of 3 x 4 and y with float32 of 0; it takes as many examples in both"),
        (torch.tensor([0.0, 1.0, 1.0]), r"model\(\) gives float32 of 3 x 2 for targets float32 of 3; it takes as many"),
        (torch.tensor([0, 1, -1]), r"data\(\) gave a label of -1, and model\(\) scores 2 classes"),
    ],
)
def test_bad_data_that_comes_with_a_model_is_refused(labels, said):
    with pytest.raises(BadInput, match=said):
        fit_own(lambda: nn.Linear(4, 2), torch.rand(3, 4), labels)


def test_a_model_that_comes_with_any_data():
    """No images, one example, labels of which this device has not all; and whole numbers for an embedding."""
    fitted = fit_own(lambda: nn.Linear(4, 5), torch.rand(1, 4), torch.tensor([1]))
    assert len(fitted.model.vector) == 4 * 5 + 5
    assert fitted.classes == 5
    words = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2))
    assert fit_own(lambda: words, torch.tensor([[0, 6], [1, 2]]), torch.tensor([0, 1])).classes == 2


def test_a_model_with_a_view_that_comes_with_data_trains_too():
    make = models_for_tests.with_a_view
    model = fit_own(lambda: make((1, 8, 8), 10), torch.rand(5, 1, 8, 8), torch.arange(5)).model
    model.module(torch.randn(3, 1, 8, 8)).sum().backward()
    assert model.gradient.abs().sum() > 0


def test_an_unknown_model_is_refused():
    with pytest.raises(BadInput, match="model: there is no 'resnet-20'; did you mean 'resnet20'"):
        make_model("resnet-20", (3, 32, 32), 10, 0)
