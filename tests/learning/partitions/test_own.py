"""The task's own partition: a function, or a partitioner of Flower Datasets."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.settings import BadInput
from fedlga.learning.partitions.base import make_parts
from fedlga.learning.partitions.iid import Iid
from fedlga.learning.partitions.own import OwnPartition, check_parts

LABELS = np.array([0, 1, 0, 1, 2, 2])


def divide(given, labels=LABELS, devices=2, seed=0) -> list[list[int]]:
    return [part.tolist() for part in make_parts(OwnPartition(given), labels, 3, devices, seed)]


def refusal(given, labels=LABELS, devices=2) -> str:
    with pytest.raises(BadInput) as error:
        divide(given, labels, devices)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).startswith("partition: ")
    return str(error.value)


def test_a_function_of_targets_devices_and_a_generator():
    seen = []

    def by_hand(targets, devices, rng):
        seen.append((targets.tolist(), devices, rng.integers(1000)))
        return [[3, 1], np.array([0, 2, 5])]

    assert divide(by_hand) == [[1, 3], [0, 2, 5]], "sorted; example 4 is nobody's"
    divide(by_hand)
    divide(by_hand, seed=1)
    assert seen[0][:2] == (LABELS.tolist(), 2)
    assert seen[0] == seen[1] != seen[2], "the seed decides"


def test_other_partitions_and_iterators_are_taken():
    assert sorted(chain(*divide(Iid()))) == list(range(6))
    assert divide(lambda t, n, rng: iter([(0,), (5,)])) == [[0], [5]]
    assert divide(lambda t, n, rng: np.arange(6).reshape(2, 3)) == [[0, 1, 2], [3, 4, 5]]


@given(st.integers(1, 30), st.data())
def test_any_real_partition_is_taken_as_it_is(examples, data):
    devices = data.draw(st.integers(1, examples))
    order = data.draw(st.permutations(range(examples)))
    ends = sorted(data.draw(st.sets(st.integers(1, examples - 1), max_size=devices - 1))) if examples > 1 else []
    parts = [list(part) for part in np.split(np.array(order), ends)]
    taken = check_parts(parts, examples, len(parts))
    assert [part.tolist() for part in taken] == [sorted(part) for part in parts]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (3, ["gave a int", "a function of (targets, devices, rng)"]),
        ("ab", ["gave a str"]),
        (None, ["gave a NoneType"]),
        ([[0]], ["gave 1 parts for 2 devices"]),
        ([[0], [1], [2]], ["gave 3 parts for 2 devices"]),
        ([[0], []], ["gave device 1 no examples"]),
        ([[0], [6]], ["device 1 rows that are not numbers from 0 to 5"]),
        ([[-1], [0]], ["device 0 rows that are not numbers from 0 to 5"]),
        ([[0.0], [1.0]], ["device 0 rows that are not numbers"]),
        ([["a"], ["b"]], ["device 0 rows that are not numbers"]),
        ([LABELS == 0, LABELS > 0], ["device 0 rows that are not numbers"]),  # masks
        ([None, None], ["device 0 rows that are not numbers"]),
        ([[0, 1], [1, 2]], ["gave an example to two devices"]),
        ([[0, 1], [2, [3]]], ["device 1"]),
    ],
    ids=range(14),
)
def test_what_is_no_partition_is_refused_in_one_line(parts, words):
    text = refusal(lambda targets, devices, rng: parts)
    for word in words:
        assert word in text


def test_a_dict_of_devices_is_read_by_its_values_or_refused():
    """Its keys are numbers too: read as rows, device 0 would hold example 0 alone."""
    try:
        parts = divide(lambda targets, devices, rng: {0: [0, 1, 2], 1: [3, 4, 5]})
    except BadInput as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert parts == [[0, 1, 2], [3, 4, 5]]


def test_an_error_in_the_function_is_named_with_its_line():
    def fails(targets, devices, rng):
        raise KeyError("postcode")

    text = refusal(fails)
    assert "KeyError" in text
    assert "test_own.py, line " in text
    assert "TypeError" in refusal(lambda targets: [])


def test_what_can_divide_nothing_is_refused():
    assert "the task's is a int" in refusal(3)
    assert "got 'own', and the task has no partition" in refusal(None)


# Partitioners of Flower Datasets


@pytest.fixture(scope="module")
def flower():
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    return pytest.importorskip("flwr_datasets.partitioner")


def test_a_partitioner_divides_by_label(flower):
    """Three labels, three devices: the natural partition gives each device one label."""
    assert divide(flower.NaturalIdPartitioner(partition_by="label"), devices=3) == [[0, 2], [1, 3], [4, 5]]


def test_a_dirichlet_partitioner_gets_all_labels(flower):
    labels = np.arange(300) % 3
    given = flower.DirichletPartitioner(3, partition_by="label", alpha=0.5, min_partition_size=2, seed=1)
    parts = divide(given, labels, devices=3)
    assert sorted(chain(*parts)) == list(range(300))
    assert parts == divide(given, labels, devices=3), "the task's partitioner is not used up"


def test_a_partitioner_that_needs_no_labels_goes_with_numbers(flower):
    parts = divide(flower.IidPartitioner(3), np.random.default_rng(0).random((6, 2)), devices=3)
    assert sorted(chain(*parts)) == list(range(6))
    sizes = [len(part) for part in divide(flower.LinearPartitioner(3), devices=3)]
    assert sizes == [1, 2, 3]


def test_partitioners_that_do_not_fit_are_refused_in_one_line(flower):
    assert "makes 3 parts for 2 devices" in refusal(flower.IidPartitioner(3))
    text = refusal(flower.NaturalIdPartitioner(partition_by="postcode"), devices=3)
    assert "its table has the columns 'label' and 'row'" in text
