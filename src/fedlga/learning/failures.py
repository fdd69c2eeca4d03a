"""What a task's own model and loss raise in the middle of a run, as one line that names the function."""

from __future__ import annotations

from typing import Any

import torch

from fedlga.core.settings import BadInput
from fedlga.learning.task import describe_error
from fedlga.learning.trees import Tree, describe_tree, leaves_of


class TaskFailed(BadInput):
    """A task's own model or loss failed on a batch."""


def explain_model(error: Exception, inputs: Tree) -> BadInput:
    """Return what to raise in place of an error in a model's forward pass."""
    if isinstance(error, BadInput):
        return error
    return TaskFailed(f"model() failed for inputs {describe_tree(inputs)}{_range_of(inputs)} ({describe_error(error)})")


def explain_loss(error: Exception, outputs: Any, targets: Tree) -> BadInput:
    """Return what to raise in place of an error in a loss."""
    if isinstance(error, BadInput):
        return error
    form = f"outputs {describe_tree(outputs)} and targets {describe_tree(targets)}{_range_of(targets)}"
    return TaskFailed(f"loss() failed for {form} ({describe_error(error)})")


def _range_of(tree: Tree) -> str:
    """Return the range of whole numbers: a token or a label beyond the last is what most often fails."""
    whole = [leaf for leaf in leaves_of(tree) if not leaf.is_floating_point() and leaf.dtype != torch.bool]
    if not whole or not all(leaf.numel() for leaf in whole):
        return ""
    return f" from {min(int(leaf.min()) for leaf in whole)} to {max(int(leaf.max()) for leaf in whole)}"
