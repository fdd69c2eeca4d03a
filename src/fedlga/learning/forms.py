"""Outputs of (n, 1) and targets of (n,): torch subtracts every target from every output. Here it does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from fedlga.learning.trees import Tree

Function = Callable[[Any, Any], Any]


def differ_by_ones(outputs: Any, targets: Tree) -> bool:
    """Return whether number targets and outputs differ in nothing but dimensions of one."""
    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(targets, torch.Tensor)
        and targets.is_floating_point()
        and outputs.shape != targets.shape
        and [size for size in outputs.shape if size != 1] == [size for size in targets.shape if size != 1]
    )


def align_targets(outputs: Any, targets: Tree) -> Tree:
    """Return number targets in the form of the outputs, if only dimensions of one differ."""
    return targets.reshape(outputs.shape) if differ_by_ones(outputs, targets) else targets


def aligned(function: Function) -> Function:
    """Return a function that gets targets in the form of the outputs."""
    return lambda outputs, targets: function(outputs, align_targets(outputs, targets))


def broadcasts(function: Function, outputs: Any, targets: Tree) -> bool:
    """Return whether a function compares every target with every output, and would not if their forms were the same.

    If it does, it gives the same whichever target belongs to which output. A function that brings them to one form
    itself, as with `outputs.squeeze(1)`, is left alone.
    """
    if not differ_by_ones(outputs, targets):
        return False
    return _ignores_order(function, outputs, targets) and not _ignores_order(aligned(function), outputs, targets)


def _ignores_order(function: Function, outputs: Any, targets: torch.Tensor) -> bool:
    """Return whether another order of the targets changes nothing; True too if the function fails."""
    values: list[torch.Tensor] = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for given in (targets, targets.roll(1, 0)):
            try:
                values.append(torch.as_tensor(function(outputs, given)).double().reshape(-1))
            except Exception:  # a function of the user's own may raise anything
                return True
    return values[0].shape == values[1].shape and torch.allclose(*values, rtol=1e-5, atol=1e-8)
