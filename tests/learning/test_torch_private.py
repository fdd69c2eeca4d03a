"""The private functions of torch and their fallbacks give the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlga.core.process import one_thread
from fedlga.core.types import Assignment, Local
from fedlga.learning import torch_private
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.named import make_model
from fedlga.learning.torch_private import (
    LARGE_PRODUCT,
    add_scaled,
    compute_gradients,
    copy_each,
    has_fast_products,
    has_forward_hooks,
    make_product_pass,
    speed_up_products,
)
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


ROWS, IN, OUT = 10, 500, 800  # 10 x 500 x 800 multiplications
needs_fast_products = pytest.mark.skipif(not has_fast_products(), reason="this torch has no product of oneDNN")


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, ...]]:
    """The shapes that oneDNN's product was called with."""
    shapes: list[tuple[int, ...]] = []
    product = torch_private._linear_pointwise

    def count(a, b, *others):
        shapes.append((*a.shape, b.shape[0]))
        return product(a, b, *others)

    monkeypatch.setattr(torch_private, "_linear_pointwise", count)
    return shapes


def layer_and_inputs(*rows: int, seed: int = 0) -> tuple[nn.Linear, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(IN, OUT)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(OUT, IN, generator=generator) / IN**0.5)
        layer.bias.copy_(torch.randn(OUT, generator=generator))
    return layer, torch.randn(*rows, IN, generator=generator)


@needs_fast_products
@pytest.mark.parametrize("rows", [(ROWS,), (2, 5), (3, 2, 4)], ids=["matrix", "sequences", "deeper"])
def test_fast_products_have_the_gradients_of_a_linear_layer(rows, calls):
    assert ROWS * IN * OUT >= LARGE_PRODUCT
    layer, x = layer_and_inputs(*rows)
    if np.prod(rows) * IN * OUT < LARGE_PRODUCT:
        x = torch.cat([x, x])
    plain, fast = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted = functional.linear(plain, layer.weight, layer.bias)
    weights = torch.linspace(-1, 1, wanted.numel()).view_as(wanted)
    of_plain = torch.autograd.grad((wanted * weights).sum(), [plain, layer.weight, layer.bias])
    calls.clear()
    speed_up_products(layer)
    outputs = layer(fast)
    assert len(calls) == 1
    of_fast = torch.autograd.grad((outputs * weights).sum(), [fast, layer.weight, layer.bias])
    assert len(calls) == 3
    torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(of_fast, of_plain, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))


@needs_fast_products
def test_only_large_products_are_computed_differently(calls):
    layer, x = layer_and_inputs(ROWS)
    speed_up_products(layer)
    layer(x)
    assert calls == [(ROWS, IN, OUT)], "exactly the limit"
    calls.clear()
    assert torch.equal(layer(x[:-1]), functional.linear(x[:-1], layer.weight, layer.bias))
    with torch.no_grad():
        assert torch.equal(layer(x), functional.linear(x, layer.weight, layer.bias))
    layer.eval()
    assert torch.equal(layer(x), functional.linear(x, layer.weight, layer.bias))
    half = layer.train().to(torch.bfloat16)
    half(x.to(torch.bfloat16))
    assert calls == [], "small products, evaluations and lower precision take torch's own"


@needs_fast_products
def test_layers_that_are_not_plain_are_left_alone():
    class Own(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    module = nn.Sequential(Own(2, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    speed_up_products(module)
    assert ["forward" in vars(layer) for layer in module] == [False, False, True]
    assert module(torch.ones(1, 2)).shape == (1, 2)


def test_without_the_product_nothing_is_changed(monkeypatch):
    monkeypatch.setattr(torch_private, "has_fast_products", lambda: False)
    layer, x = layer_and_inputs(ROWS)
    speed_up_products(layer)
    assert "forward" not in vars(layer)
    assert torch.equal(layer(x), functional.linear(x, layer.weight, layer.bias))
    make_product_pass.cache_clear()
    assert make_product_pass() is None
    make_product_pass.cache_clear()


def fails(*_):
    raise RuntimeError("not on this processor")


@pytest.mark.parametrize("product", [None, fails, lambda a, b, *_: a @ b.t()], ids=["missing", "fails", "wrong"])
def test_a_product_that_does_not_work_is_not_used(monkeypatch, product):
    monkeypatch.setattr(torch_private, "_linear_pointwise", product)
    has_fast_products.cache_clear()
    try:
        assert has_fast_products() is False
    finally:
        has_fast_products.cache_clear()
