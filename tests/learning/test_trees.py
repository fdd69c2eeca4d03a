"""Trees: tensors in tuples and dicts, of any depth."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlga.learning.trees import describe_tree, join_trees, leaves_of, map_tree

TREES = st.recursive(
    st.integers(-5, 5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)


def test_a_tree_keeps_its_form():
    tree = {"ids": 1, "more": (2, {"deep": 3})}
    assert map_tree(lambda leaf: 10 * leaf, tree) == {"ids": 10, "more": (20, {"deep": 30})}
    assert map_tree(lambda a, b: a - b, (5, {"x": 7}), (1, {"x": 2})) == (4, {"x": 5})
    assert map_tree(str, [1, 2]) == ("1", "2"), "a list becomes a tuple: it is spread over a model's arguments"


def test_trees_of_different_forms_are_not_mapped_together():
    with pytest.raises(ValueError, match="argument 2"):
        map_tree(lambda a, b: a, (1, 2), (1,))
    with pytest.raises(KeyError):
        map_tree(lambda a, b: a, {"a": 1}, {"b": 1})


@given(TREES)
def test_leaves_come_in_the_order_in_which_they_are_mapped(tree):
    seen: list[int] = []
    same = map_tree(lambda leaf: seen.append(leaf) or leaf, tree)
    assert list(leaves_of(tree)) == seen == list(leaves_of(same))


def test_trees_are_joined_leaf_by_leaf():
    pieces = [
        {"a": torch.tensor([1, 2]), "b": (torch.zeros(2, 3),)},
        {"a": torch.tensor([3]), "b": (torch.ones(1, 3),)},
    ]
    joined = join_trees(pieces)
    assert joined["a"].tolist() == [1, 2, 3]
    assert joined["b"][0].sum(1).tolist() == [0, 0, 3]


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (torch.zeros(32, 10), "float32 of 32 x 10"),
        (torch.tensor(1), "int64 of no dimension"),
        ({"ids": torch.zeros(2, 3, dtype=torch.int64)}, "{ids: int64 of 2 x 3}"),
        ((torch.zeros(2), [torch.zeros(1, dtype=torch.bfloat16)]), "(float32 of 2, (bfloat16 of 1))"),
        ("text", "str"),
        (None, "NoneType"),
    ],
)
def test_a_tree_in_a_few_words(tree, text):
    assert describe_tree(tree) == text
