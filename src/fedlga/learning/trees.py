"""Trees: a tensor, or a tuple, list or dict of trees. A batch's inputs and targets may be any tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch

Tree = Any
KINDS = "a tensor, or a tuple or dict of tensors"


def map_tree(change: Callable[[Any], Any], *trees: Tree) -> Tree:
    """Return a tree of the first one's form, with `change` of the leaves of all trees at the same place."""
    first: Any = trees[0]
    if isinstance(first, Mapping):
        names = list(cast("Mapping[Any, Any]", first))
        mapped = {name: map_tree(change, *(tree[name] for tree in trees)) for name in names}
        return mapped if type(cast("Any", first)) is dict else _like(first, mapped)
    if isinstance(first, list | tuple):
        return tuple(map_tree(change, *parts) for parts in zip(*trees, strict=True))
    return change(*trees)


def _like(mapping: Any, values: dict[Any, Any]) -> Any:
    """Return values as a mapping of another's kind, such as the outputs of a Hugging Face model."""
    try:
        return type(mapping)(**values)
    except TypeError:
        return values


def join_trees(trees: Sequence[Tree]) -> Tree:
    """Return trees of one form as one, the tensors at each place one after the other."""

    def join(*leaves: torch.Tensor) -> torch.Tensor:
        return torch.cat(leaves)

    return map_tree(join, *trees)


def leaves_of(tree: Tree) -> Iterator[Any]:
    """Yield the leaves of a tree."""
    if isinstance(tree, Mapping):
        for inner in cast("Mapping[Any, Any]", tree).values():
            yield from leaves_of(inner)
    elif isinstance(tree, list | tuple):
        for inner in cast("Sequence[Any]", tree):
            yield from leaves_of(inner)
    else:
        yield tree


def name_type(value: Any) -> str:
    """Return the name of a value's type."""
    return type(value).__name__


def describe_tree(tree: Tree) -> str:
    """Return the form of a tree in a few words: 'float32 of 32 x 10', '{ids: int64 of 32 x 80}'."""
    if isinstance(tree, Mapping):
        parts = (f"{name}: {describe_tree(inner)}" for name, inner in cast("Mapping[Any, Any]", tree).items())
        return "{" + ", ".join(parts) + "}"
    if isinstance(tree, list | tuple):
        return "(" + ", ".join(describe_tree(inner) for inner in cast("Sequence[Any]", tree)) + ")"
    if isinstance(tree, torch.Tensor):
        size = " x ".join(map(str, tree.shape)) or "no dimension"
        return f"{str(tree.dtype).removeprefix('torch.')} of {size}"
    return type(tree).__name__
