"""Who trains on what, and what is held out: a fifth, by the seed, the same for every method."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fedlga
from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.simulation import simulate
from fedlga.learning.examples import LazyExamples, TensorExamples
from fedlga.learning.partitions.own import OwnPartition
from fedlga.learning.reading import TaskData, collate_pairs
from fedlga.learning.splitting import Split, find_labels, split_examples
from fedlga.learning.task import Task

TASK = Task(lambda: nn.Linear(1, 2), None)
IID = create("partition", "iid", {})


def numbered(count: int, targets: torch.Tensor | None = None) -> TensorExamples:
    """Return examples whose input is their number."""
    return TensorExamples(torch.arange(count).float()[:, None], torch.arange(count) % 2 if targets is None else targets)


def split(count=20, *, devices=4, seed=0, classes: int | None = 2, partition=IID, parts=None, own_tests=False, **more):
    targets = None if classes else torch.arange(count).float()
    if parts is not None:
        partition, devices = OwnPartition(), len(parts)
    data = TaskData(TASK, numbered(count, targets), parts=parts, **more)
    return split_examples(data, partition, devices, seed, classes, own_tests=own_tests)


def held_out(result: Split) -> list[int]:
    """Return the numbers of the test examples."""
    inputs, _ = result.test.piece(0, len(result.test))
    return [int(i) for i in inputs[:, 0]]


def trained(result: Split) -> list[int]:
    return [int(row) for part in result.parts for row in part]


@given(
    count=st.integers(10, 200),
    devices=st.integers(1, 5),
    seed=st.integers(0, 1000),
    classes=st.sampled_from([2, None]),
    own_tests=st.booleans(),
)
def test_every_example_is_trained_or_tested_on_once(count, devices, seed, classes, own_tests):
    result = split(count, devices=devices, seed=seed, classes=classes, own_tests=own_tests)
    assert sorted(trained(result) + held_out(result)) == list(range(count))
    assert len(result.parts) == devices
    assert all(len(part) for part in result.parts)
    assert held_out(result) == result.test_rows.tolist()
    if classes and not own_tests:
        assert len(held_out(result)) == count // 5
        assert result.ranges is None
        assert held_out(result) == sorted(held_out(result))
    else:
        # Each device holds out a fifth of what it has, at least one.
        for part, (start, end) in zip(result.parts, result.ranges, strict=True):
            both = len(part) + end - start
            assert end - start == max(1, both // 5)
        assert [start for start, _ in result.ranges] == [0, *(end for _, end in result.ranges[:-1])]
        assert result.ranges[-1][1] == len(result.test)


def test_the_seed_decides():
    first, same, other = split(seed=3), split(seed=3), split(seed=4)
    assert held_out(first) == held_out(same) != held_out(other)
    assert trained(first) == trained(same)


def test_the_number_of_devices_does_not_change_what_is_tested():
    """Otherwise two federations of the same data could not be compared."""
    assert held_out(split(devices=2)) == held_out(split(devices=5))


@pytest.mark.parametrize("numbers", [True, False], ids=["regression", "classes"])
def test_the_split_is_the_same_for_every_method(numbers):
    x = np.arange(40.0)[:, None] / 40
    y = x[:, 0] if numbers else np.arange(40) % 2
    task = Task(lambda: nn.Linear(1, 1 if numbers else 2), (x, y))
    splits = []
    for method in ("fedavg", "scaffold", "fedlga"):
        e = Experiment(rounds=1, devices=4, cohort=2, backend="serial", method=method, seed=7)
        with simulate(e, task=task) as simulation:
            splits.append((trained(simulation.split), simulation.split.test_rows.tolist()))
    assert splits[0] == splits[1] == splits[2]


# Data that came by device

PARTS = [np.arange(10), np.arange(10, 13), np.array([13])]


@pytest.mark.parametrize("classes", [2, None])
def test_devices_hold_out_a_fifth_of_their_own_data(classes):
    """10 / 5 = 2; of 3 one; a device with a single example trains on it."""
    result = split(14, parts=PARTS, classes=classes)
    assert [len(part) for part in result.parts] == [8, 2, 1]
    assert result.ranges == [(0, 2), (2, 3), (3, 3)]
    assert set(held_out(result)[:2]) <= set(range(10))
    assert set(held_out(result)[2:]) <= set(range(10, 13))
    assert sorted(trained(result) + held_out(result)) == list(range(14))


def test_what_a_device_holds_out_does_not_depend_on_other_devices():
    alone = split(14, parts=PARTS)
    with_others = split(14, parts=[PARTS[0], PARTS[2], PARTS[1]])
    assert alone.parts[0].tolist() == with_others.parts[0].tolist()


def test_a_given_test_set_is_left_as_it_is():
    test = numbered(6)
    together = split(14, parts=PARTS, test=test)
    assert together.test is test
    assert (together.ranges, together.test_rows) == (None, None)
    assert [part.tolist() for part in together.parts] == [part.tolist() for part in PARTS]
    by_device = split(14, parts=PARTS, test=test, test_parts=[np.arange(1), np.arange(1, 4), np.arange(4, 6)])
    assert by_device.ranges == [(0, 1), (1, 4), (4, 6)]
    pooled = split(20, test=test)
    assert sorted(trained(pooled)) == list(range(20))
    assert pooled.test is test


def test_another_partition_mixes_what_devices_brought():
    data = TaskData(TASK, numbered(14), parts=PARTS)
    result = split_examples(data, IID, 2, 0, 2)
    assert len(result.parts) == 2
    assert sorted(trained(result) + held_out(result)) == list(range(14))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"partition": create("partition", "classes", {}), "classes": None}, "divides the data by classes"),
        ({"partition": create("partition", "dirichlet", {}), "classes": None}, "divides the data by classes"),
        ({"count": 1, "devices": 1}, "got one example; it takes two"),
        ({"count": 4, "devices": 4, "classes": None}, "every device has one example"),
        ({"count": 4, "devices": 5, "classes": None}, "devices: got 5; the dataset has 4 examples"),
        ({"parts": [np.array([0]), np.array([1])], "count": 2}, "every device has one example"),
        ({"partition": OwnPartition()}, "the task has no partition"),
    ],
    ids=range(7),
)
def test_what_cannot_be_split_is_refused_in_one_line(change, message):
    with pytest.raises(BadInput) as error:
        split(**change)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_as_many_devices_as_parts():
    data = TaskData(TASK, numbered(14), parts=PARTS)
    with pytest.raises(BadInput, match="devices: got 2; the data comes in 3 parts"):
        split_examples(data, OwnPartition(), 2, 0, 2)


# Labels


def test_what_devices_hold_is_counted_without_the_tests():
    result = split(14, parts=PARTS)
    labels = np.arange(14) % 2
    assert result.held.tolist() == [np.bincount(labels[part], minlength=2).tolist() for part in result.parts]
    assert split(14, parts=PARTS, classes=None).held is None


class Unread:
    """A dataset whose examples must not be read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index):
        raise AssertionError("it was read")


def test_labels_are_read_only_if_that_is_quick_or_needed():
    slow = LazyExamples(Unread(), collate_pairs)
    assert find_labels(slow, 2, needed=False) is None
    assert find_labels(slow, None, needed=True) is None
    known = LazyExamples(Unread(), collate_pairs, known_targets=lambda: torch.arange(10) % 2)
    assert find_labels(known, 2, needed=False).tolist() == [0, 1] * 5
    with pytest.raises(BadInput, match="it was read"):
        find_labels(slow, 2, needed=True)


def test_partitions_by_classes_go_with_a_task(tmp_path):
    """Each device holds one class of two: its row of the table has one number."""
    x = np.arange(40.0)[:, None] / 40
    task = Task(lambda: nn.Linear(1, 2), (x, np.arange(40) % 2))
    settings = {"rounds": 1, "devices": 4, "cohort": 4, "backend": "serial"}
    e = Experiment(partition="classes", classes_per_device=1, **settings)
    with simulate(e, task=task) as simulation:
        assert (simulation.split.held > 0).sum(1).tolist() == [1, 1, 1, 1]
        assert simulation.split.held.sum() == 32
    numbers = Task(lambda: nn.Linear(1, 1), (x, x[:, 0]))
    with pytest.raises(BadInput, match="partition: it divides the data by classes"):
        fedlga.run(e, tmp_path / "run", task=numbers)
