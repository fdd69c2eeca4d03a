"""The private functions of torch that we call, in one place, each with a public fallback.

They save a tenth of a small model's step. A torch version without them is slower, and gives the same numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional


@functools.cache
def _one(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.ones((), dtype=dtype, device=device)


def _find(owner: Any, *names: str) -> Any | None:
    for name in names:
        owner = getattr(owner, name, None)
    return owner


_run_backward = _find(torch.autograd, "Variable", "_execution_engine", "run_backward")
_foreach_add = _find(torch, "_foreach_add_")
_foreach_copy = _find(torch, "_foreach_copy_")


def compute_gradients(loss: torch.Tensor, parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradient of a scalar for each parameter; zeros for those that the loss does not depend on."""
    if _run_backward is None:
        gradients: Sequence[torch.Tensor | None] = torch.autograd.grad(loss, list(parameters), allow_unused=True)
    else:  # torch.autograd.grad without its checks
        options = {"allow_unreachable": True, "accumulate_grad": False}
        gradients = _run_backward((loss,), (_one(loss.dtype, loss.device),), False, False, tuple(parameters), **options)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]


def add_scaled(targets: Sequence[torch.Tensor], others: Sequence[torch.Tensor], factor: float) -> None:
    """Add factor * other to each target, in place."""
    if _foreach_add is None:
        for target, other in zip(targets, others, strict=True):
            target.add_(other, alpha=factor)
    else:
        _foreach_add(targets, others, alpha=factor)


def copy_each(targets: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    """Copy each tensor into its target."""
    if _foreach_copy is None:
        for target, other in zip(targets, others, strict=True):
            target.copy_(other)
    else:
        _foreach_copy(targets, others)


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether something of the user's runs when a module is called; True if this torch does not tell."""
    attributes = vars(module)
    return any(attributes.get(name, True) for name in ("_forward_hooks", "_forward_pre_hooks"))


LARGE_PRODUCT = 4_000_000  # multiplications: from here on oneDNN's matrix product saves more than calling it costs
_linear_pointwise = _find(torch.ops, "mkldnn", "_linear_pointwise", "default")


def _product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return a @ b.t() + bias by oneDNN. torch uses MKL, which takes up to twice as long for batches of 10."""
    assert _linear_pointwise is not None
    return _linear_pointwise(a, b, bias, "none", [], "")


class _LargeLinear(torch.autograd.Function):
    """A linear layer with all three of its products, forward and backward, by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]:
        (g,), (x, weight) = gradients, ctx.saved_tensors
        rows, inputs = g.reshape(-1, g.shape[-1]), x.reshape(-1, x.shape[-1])
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted, which oneDNN's product does not have
            return g @ weight, rows.t() @ inputs, rows.sum(0)
        of_x = _product(g, weight.t()) if ctx.needs_input_grad[0] else None
        return of_x, _product(rows.t(), inputs.t()), rows.sum(0)


@functools.cache
def has_fast_products() -> bool:
    """Return whether this torch has oneDNN's product, and it does what it should."""
    if _linear_pointwise is None or not torch.backends.mkldnn.is_available():
        return False
    a, b = torch.arange(12.0, device="cpu").view(3, 4), torch.arange(8.0, device="cpu").view(2, 4)  # exact in any order
    bias = torch.tensor([3.0, 5.0], device="cpu")
    try:
        return bool(torch.equal(_product(a, b, bias), a @ b.t() + bias))
    except (RuntimeError, TypeError):
        return False


def speed_up_products(module: nn.Module) -> None:
    """Let the large linear layers of a module train with oneDNN's products. The numbers differ in their last bits."""
    if not has_fast_products():
        return
    for layer in module.modules():
        if type(layer) is nn.Linear and layer.bias is not None:  # pyright: ignore[reportUnnecessaryComparison]
            vars(layer)["forward"] = functools.partial(_forward_linear, layer)


def _forward_linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    large = layer.weight.numel() * (x.numel() // max(x.shape[-1], 1)) >= LARGE_PRODUCT
    plain = x.dtype == layer.weight.dtype == torch.float32 and x.device.type == "cpu" and layer.bias.is_contiguous()
    if not (large and plain and layer.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return functional.linear(x, layer.weight, layer.bias)
    return _LargeLinear.apply(x, layer.weight, layer.bias)  # pyright: ignore[reportUnknownVariableType]


def _shape_product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return a.new_empty((*a.shape[:-1], b.shape[0]))


PASSED_ON = 1_000_000  # multiplications in compiled code, where a call costs less


@functools.cache
def make_product_pass() -> Any | None:
    """Return a pass of torch's compiler that lets oneDNN compute large products; None if it cannot be had here."""
    if not has_fast_products():
        return None
    try:
        from torch._inductor.custom_graph_pass import CustomGraphPass  # pyright: ignore[reportMissingImports]

        library = torch.library.Library("fedlga", "DEF")
        library.define("product(Tensor a, Tensor b, Tensor? bias) -> Tensor")
        library.impl("product", _product, "CPU")
        library.impl("product", _shape_product, "Meta")
        product: Any = torch.ops.fedlga.product.default
    except (ImportError, AttributeError, RuntimeError):
        return None
    aten: Any = torch.ops.aten

    class Products(CustomGraphPass):  # pyright: ignore[reportUntypedBaseClass]
        """Replaces large mm and addmm of float32."""

        keep = library  # an operator is there as long as its library

        def __call__(self, graph: Any) -> None:
            for node in list(graph.nodes):
                if (
                    node.op != "call_function"
                    or node.target not in (aten.mm.default, aten.addmm.default)
                    or node.kwargs
                ):
                    continue
                *bias, a, b = node.args
                left, right = a.meta["val"], b.meta["val"]
                if node.meta["val"].dtype != torch.float32 or (bias and bias[0].meta["val"].dim() != 1):
                    continue
                if left.shape[0] * left.shape[1] * right.shape[1] < PASSED_ON:
                    continue
                with graph.inserting_before(node):
                    turned = graph.call_function(aten.permute.default, (b, [1, 0]))
                    turned.meta["val"] = aten.permute.default(right, [1, 0])
                    new = graph.call_function(product, (a, turned, bias[0] if bias else None))
                    new.meta.update(node.meta)
                node.replace_all_uses_with(new)
                graph.erase_node(node)

        def uuid(self) -> bytes:
            return b"fedlga-products-1"  # part of the key of torch's cache

    return Products()
