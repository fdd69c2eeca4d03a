"""Examples, in memory and lazy: batches, pieces, rows of their own, targets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlga.learning.examples import LazyExamples, TensorExamples, move_batch
from fedlga.learning.reading import collate_pairs
from fedlga.learning.trees import leaves_of

COUNT = 7


class Pairs:
    """Example i is (i, 10 i) as input and -i as target; it counts what is read."""

    def __init__(self, form: str) -> None:
        self.form, self.read = form, 0

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int):
        self.read += 1
        one, ten = torch.tensor(float(index)), torch.tensor([10.0 * index])
        inputs = {"tensor": torch.tensor([index, 10.0 * index]), "tuple": (one, ten), "dict": {"a": one, "b": ten}}
        return inputs[self.form], -index


class ManyAtOnce(Pairs):
    """Reads many rows in one go, as torch's and Hugging Face's datasets may."""

    def __getitems__(self, rows: list[int]) -> list[object]:
        assert all(type(row) is int for row in rows)
        self.asked = rows
        return [super(ManyAtOnce, self).__getitem__(row) for row in rows]

    def __getitem__(self, index: int):
        raise AssertionError("there is a faster way")


def in_memory(form: str) -> TensorExamples:
    i = torch.arange(COUNT, dtype=torch.float32)
    pair = (i, 10 * i[:, None])
    inputs = {"tensor": torch.stack([i, 10 * i], 1), "tuple": pair, "dict": {"a": pair[0], "b": pair[1]}}
    return TensorExamples(inputs[form], -torch.arange(COUNT))


def lazy(form: str) -> LazyExamples:
    return LazyExamples(Pairs(form), collate_pairs)


def many_at_once(form: str) -> LazyExamples:
    return LazyExamples(ManyAtOnce(form), collate_pairs)


FORMS, KINDS = ("tensor", "tuple", "dict"), (in_memory, lazy, many_at_once)


def numbers(batch) -> tuple[list[list[float]], list[int]]:
    """Return the inputs as rows of numbers, whatever their form, and the targets."""
    inputs, targets = batch
    columns = [leaf.reshape(len(targets), -1) for leaf in leaves_of(inputs)]
    return torch.cat(columns, 1).tolist(), targets.tolist()


def expected(rows) -> tuple[list[list[float]], list[int]]:
    return [[i, 10 * i] for i in rows], [-i for i in rows]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", KINDS)
def test_batches_and_pieces(make, form):
    examples = make(form)
    assert len(examples) == COUNT
    assert numbers(examples.batch(torch.tensor([4, 0, 4]))) == expected([4, 0, 4])
    assert numbers(examples.piece(2, 5)) == expected([2, 3, 4])
    assert examples.targets().tolist() == [-i for i in range(COUNT)]
    inputs = examples.piece(0, 1)[0]
    assert isinstance(inputs, {"tensor": torch.Tensor, "tuple": tuple | list, "dict": dict}[form])


@pytest.mark.parametrize("make", KINDS)
def test_rows_that_were_taken_are_numbered_anew(make):
    taken = make("dict").take(np.array([6, 1, 3]))
    assert len(taken) == 3
    assert numbers(taken.piece(0, 3)) == expected([6, 1, 3])
    again = taken.take(np.array([2, 0]))
    assert numbers(again.batch(torch.tensor([1, 0]))) == expected([6, 3])
    assert again.targets().tolist() == [-3, -6]


@given(st.data())
def test_taking_twice_is_taking_rows_of_rows(data):
    first = data.draw(st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=9))
    second = data.draw(st.lists(st.integers(0, len(first) - 1), min_size=1, max_size=9))
    for make in KINDS:
        taken = make("tensor").take(np.array(first)).take(np.array(second))
        assert numbers(taken.piece(0, len(taken))) == expected([first[i] for i in second])


def test_lazy_examples_are_read_only_when_needed():
    dataset = Pairs("tensor")
    examples = LazyExamples(dataset, collate_pairs).take(np.array([5, 2, 0]))
    assert dataset.read == 0
    examples.batch(torch.tensor([1]))
    assert dataset.read == 1
    assert examples.item(0)[1] == -5
    examples.targets()
    assert dataset.read == 2 + 3


def test_known_targets_are_not_read():
    dataset = Pairs("tensor")
    known = torch.arange(100, 100 + COUNT)
    examples = LazyExamples(dataset, collate_pairs, known_targets=lambda: known)
    assert examples.knows_targets
    assert examples.take(np.array([3, 1])).targets().tolist() == [103, 101]
    assert dataset.read == 0
    assert not lazy("tensor").knows_targets


def test_rows_that_are_read_together_are_asked_for_once():
    dataset = ManyAtOnce("tensor")
    LazyExamples(dataset, collate_pairs).take(np.array([5, 4, 3])).batch(torch.tensor([2, 0]))
    assert dataset.asked == [3, 5]


@pytest.mark.parametrize("form", FORMS)
def test_only_tensors_are_in_memory(form):
    examples = in_memory(form)
    assert examples.in_memory is examples
    assert lazy(form).in_memory is None
    assert examples.device == torch.device("cpu")
    assert numbers(examples.to(torch.device("cpu")).piece(0, 2)) == expected([0, 1])
    batch = lazy(form).piece(0, 2)
    assert move_batch(batch, torch.device("cpu")) is batch


def test_a_batch_is_moved_leaf_by_leaf():
    inputs, targets = move_batch(in_memory("dict").piece(0, 2), torch.device("meta"))
    assert {leaf.device.type for leaf in (*inputs.values(), targets)} == {"meta"}
