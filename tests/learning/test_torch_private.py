"""The private functions of torch and their fallbacks give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedlga.core.process import one_thread
from fedlga.core.types import Assignment, Local
from fedlga.learning import torch_private
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.named import make_model
from fedlga.learning.torch_private import add_scaled, compute_gradients, copy_each, has_forward_hooks
from fedlga.learning.training import TrainingOptions, run_sgd

PRIVATE = ("_run_backward", "_foreach_add", "_foreach_copy")


def train(model: FlatModel, *, momentum: float, pull: float, clip: float) -> tuple[torch.Tensor, int, float]:
    """Run five steps of SGD on random data, the same every time."""
    rng = np.random.default_rng(5)
    images = torch.from_numpy(rng.standard_normal((5, 6, 1, 8, 8)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, 10, (5, 6)))
    w = torch.linspace(-0.1, 0.1, len(model.vector))
    asked = Assignment(0, 0, w, 5, 5, lr=0.05, momentum=momentum, seed=0, broadcast={})
    constant = torch.linspace(-0.01, 0.01, len(w)) if pull else None
    with one_thread():  # as in a round: sums then have the same last bit every time
        batches, options = zip(images, labels, strict=True), TrainingOptions(batch_size=6, clip=clip)
        result = run_sgd(model, asked, Local(constant, pull), batches, options)
    return result.delta, result.steps, result.loss


def test_this_torch_has_the_private_functions():
    """Otherwise the tests below would compare the fallbacks with themselves."""
    assert all(getattr(torch_private, name) is not None for name in PRIVATE)


@pytest.mark.parametrize("missing", [*[(name,) for name in PRIVATE], PRIVATE], ids="+".join)
@pytest.mark.parametrize("name", ["mlp", "cnn", "models_for_tests:with_a_frozen_layer"])
@pytest.mark.parametrize(
    ("momentum", "pull", "clip"),
    [(0.0, 0.0, 0.0), (0.9, 0.0, 0.0), (0.0, 0.5, 0.0), (0.5, 0.1, 0.05)],
    ids=["plain", "momentum", "local terms", "all and clipped"],
)
def test_without_private_functions_sgd_gives_the_same_bits(name, missing, momentum, pull, clip, monkeypatch):
    model = make_model(name, (1, 8, 8), 10, 0)
    model.module.eval()  # no draws of its own
    private = train(model, momentum=momentum, pull=pull, clip=clip)
    for function in missing:
        monkeypatch.setattr(torch_private, function, None)
    public = train(model, momentum=momentum, pull=pull, clip=clip)
    assert private[0].abs().sum() > 0
    assert torch.equal(private[0], public[0])
    assert private[1:] == public[1:]


@pytest.mark.parametrize("private", [True, False])
def test_what_the_loss_does_not_depend_on_has_a_gradient_of_zero(private, monkeypatch):
    """One layer of two is used; torch.autograd.grad is what it must agree with."""
    if not private:
        monkeypatch.setattr(torch_private, "_run_backward", None)
    used, unused = nn.Linear(3, 2), nn.Linear(3, 2)
    parameters = [*used.parameters(), *unused.parameters()]
    images = torch.arange(6.0).view(2, 3)
    gradients = compute_gradients(used(images).square().sum(), parameters)
    wanted = torch.autograd.grad(used(images).square().sum(), parameters, materialize_grads=True)
    for one, other in zip(gradients, wanted, strict=True):
        assert torch.equal(one, other)
    assert not any(piece.any() for piece in gradients[2:])


@pytest.mark.parametrize("private", [True, False])
def test_adding_and_copying(private, monkeypatch):
    if not private:
        monkeypatch.setattr(torch_private, "_foreach_add", None)
        monkeypatch.setattr(torch_private, "_foreach_copy", None)
    targets, others = [torch.ones(2), torch.zeros(3)], [torch.full((2,), 4.0), torch.full((3,), 2.0)]
    add_scaled(targets, others, -0.5)
    assert [t.tolist() for t in targets] == [[-1.0, -1.0], [-1.0, -1.0, -1.0]]
    copy_each(targets, others)
    assert all(torch.equal(t, o) for t, o in zip(targets, others, strict=True))


def test_hooks_are_seen():
    layer = nn.Linear(2, 2)
    assert not has_forward_hooks(layer)
    handle = layer.register_forward_pre_hook(lambda module, inputs: None)
    assert has_forward_hooks(layer)
    handle.remove()
    assert not has_forward_hooks(layer)
    layer.register_forward_hook(lambda module, inputs, out: None)
    assert has_forward_hooks(layer)
