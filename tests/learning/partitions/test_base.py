"""What every partition must hold: no example lost, none twice, no device without data, and the seed decides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.core.registry import create, find, names_of
from fedlga.core.settings import BadInput, settings_of
from fedlga.learning.partitions.base import count_classes, cut, fill_empty, make_parts
from fedlga.learning.partitions.iid import Iid


def partition_of(kind, per_device, alpha):
    """Return a partition with those of these settings that it has."""
    values = {"classes_per_device": per_device, "partition_alpha": alpha}
    known = {f.name for f in settings_of(find("partition", kind))}
    given = {"given": deal} if kind == "own" else {}
    return create("partition", kind, {name: value for name, value in values.items() if name in known}, **given)


def deal(targets, devices, rng):
    """Divide examples as a task's own partition could: shuffled, and one each in turn."""
    order = rng.permutation(len(targets))
    return [order[device::devices] for device in range(devices)]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(names_of("partition")),
    st.integers(1, 40),
    st.integers(2, 10),
    st.floats(0.01, 100),
    st.integers(0, 2**32),
    st.data(),
)
def test_every_example_goes_to_exactly_one_device(kind, devices, classes, alpha, seed, data):
    per_device = data.draw(st.integers(-(-classes // devices), classes))
    partition = partition_of(kind, per_device, alpha)
    parts = make_parts(partition, np.arange(1000) % classes, classes, devices, seed)
    assert len(parts) == devices
    assert all(len(part) > 0 for part in parts)
    together = np.sort(np.concatenate(parts))
    assert np.array_equal(together, np.arange(1000))


@pytest.mark.parametrize("kind", names_of("partition"))
def test_the_seed_decides(kind):
    labels = np.arange(600) % 10

    def split(seed):
        return make_parts(partition_of(kind, 2, 0.5), labels, 10, 10, seed)

    same, other = split(0), split(1)
    assert all(np.array_equal(a, b) for a, b in zip(split(0), same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(other, same, strict=True))


@pytest.mark.parametrize("kind", names_of("partition"))
def test_more_devices_than_examples_are_refused(kind):
    with pytest.raises(BadInput, match="devices: got 601; the dataset has 600 examples"):
        make_parts(partition_of(kind, 2, 0.5), np.arange(600) % 10, 10, 601, 0)


def test_more_devices_than_examples_may_share_them():
    assert len(make_parts(Iid(examples_per_device=3), np.arange(600) % 10, 10, 601, 0)) == 601


def test_classes_are_counted_by_hand():
    labels = np.array([0, 1, 1, 2])
    table = count_classes([np.array([0, 1]), np.array([2, 3])], labels, 4)
    assert table.tolist() == [[1, 1, 0, 0], [0, 1, 1, 0]]


def test_an_empty_device_gets_one_example_of_the_largest():
    parts = fill_empty([np.array([], int), np.array([5, 2, 9]), np.array([1])])
    assert [part.tolist() for part in parts] == [[5], [2, 9], [1]]


def test_shares_are_cut_in_order():
    parts = cut(np.array([3, 1, 2, 0]), np.array([0.5, 0.25, 0.25]))
    assert [part.tolist() for part in parts] == [[1, 3], [2], [0]]
