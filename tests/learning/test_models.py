"""The models: those of the papers, and what is asked of a user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import models_for_tests
from fedlga.core.settings import BadInput
from fedlga.learning.models import FlatModel, cnn, make_model, make_own_model, mlp, resnet20


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
    make_model("models_for_tests:with_constant_buffer", (1, 8, 8), 10, 0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("with_batch_norm", r"has buffers that training changes \(2.running_mean, 2.running_var, 2.num_batches"),
        ("too_few_scores", r"gives \(2, 9\) for 2 images; it takes one score a class, \(2, 10\)"),
        ("wrong_shape", r"does not take images of shape \(1, 8, 8\)"),
        ("doubles", "has parameters of torch.float64; it takes torch.float32"),
        ("nothing_to_train", "has no trainable parameters"),
        ("not_a_module", "gave a str; it takes a function that returns an nn.Module"),
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
        ("with_batch_norm", r"model\(\) has buffers that training changes"),
        ("wrong_shape", r"model\(\) does not take images of shape \(1, 8, 8\)"),
        ("too_few_scores", r"model\(\) gives \(2, 9\) for 2 images; it takes one score a class, \(2, 10\)"),
        ("not_a_module", r"model\(\) gave a str"),
    ],
)
def test_a_bad_model_that_comes_with_data_is_refused(name, said):
    make = getattr(models_for_tests, name)
    with pytest.raises(BadInput, match=said):
        make_own_model(lambda: make((1, 8, 8), 10), torch.rand(5, 1, 8, 8), torch.tensor([0, 9, 2, 3, 4]), 0)


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (torch.tensor([0, 1]), "got 3 examples and 2 labels"),
        (torch.tensor([]), "got 3 examples and 0 labels"),
        (torch.tensor([0.0, 1.0, 1.0]), "got labels of torch.float32 in 1 dimensions"),
        (torch.tensor([0, 1, -1]), "it takes torch.int64 in one, counted from 0"),
    ],
)
def test_bad_data_that_comes_with_a_model_is_refused(labels, said):
    with pytest.raises(BadInput, match=said):
        make_own_model(lambda: nn.Linear(4, 2), torch.rand(3, 4), labels, 0)


def test_a_model_that_comes_with_any_data():
    """No images, one example, labels of which this device has not all; and whole numbers for an embedding."""
    assert len(make_own_model(lambda: nn.Linear(4, 5), torch.rand(1, 4), torch.tensor([1]), 0).vector) == 4 * 5 + 5
    words = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2))
    make_own_model(lambda: words, torch.tensor([[0, 6], [1, 2]]), torch.tensor([0, 1]), 0)


def test_a_model_with_a_view_that_comes_with_data_trains_too():
    make = models_for_tests.with_a_view
    model = make_own_model(lambda: make((1, 8, 8), 10), torch.rand(5, 1, 8, 8), torch.arange(5), 0)
    model.module(torch.randn(3, 1, 8, 8)).sum().backward()
    assert model.gradient.abs().sum() > 0


def test_an_unknown_model_is_refused():
    with pytest.raises(BadInput, match="model: there is no 'resnet-20'; did you mean 'resnet20'"):
        make_model("resnet-20", (3, 32, 32), 10, 0)
