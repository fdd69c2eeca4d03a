"""The paper's partition: a few classes a device."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.core.settings import BadInput
from fedlga.learning.partitions.base import count_classes, make_parts
from fedlga.learning.partitions.classes import ByClasses


def split(devices=10, examples=600, classes=10, per_device=2, seed=0, labels=None, each=0):
    labels = np.arange(examples) % classes if labels is None else labels
    partition = ByClasses(classes_per_device=per_device, examples_per_device=each)
    return labels, make_parts(partition, labels, classes, devices, seed)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 2**32), st.data())
def test_each_device_holds_p_classes(devices, classes, seed, data):
    per_device = data.draw(st.integers(-(-classes // devices), classes))
    labels, parts = split(devices, 1200, classes, per_device, seed)
    held = (count_classes(parts, labels, classes) > 0).sum(1)
    assert set(held) == {per_device}
    holders = (count_classes(parts, labels, classes) > 0).sum(0)
    assert holders.max() - holders.min() <= 1


def test_the_papers_partition_is_even():
    _, parts = split(devices=50, examples=6000, per_device=2)
    assert {len(part) for part in parts} == {120}


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(3, 40), st.integers(1, 3))
def test_devices_may_draw_examples_of_their_own(devices, each, per_device):
    """More devices than examples: every device has data, of as many classes as were asked for."""
    arguments = {"devices": devices, "examples": 97, "classes": 7, "per_device": per_device, "each": each}
    labels, parts = split(**arguments)
    assert [len(part) for part in parts] == [each] * devices
    held = count_classes(parts, labels, 7)
    assert set((held > 0).sum(1)) == {per_device}
    assert (held[held > 0] >= each // per_device).all()
    assert all(np.array_equal(a, b) for a, b in zip(parts, split(**arguments)[1], strict=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_device": 11}, "classes_per_device: got 11; it takes at most the 10 classes"),
        ({"devices": 4, "per_device": 2}, "hold 8 of 10 classes"),
        ({"devices": 601}, "devices: got 601; the dataset has 600 examples"),
        ({"devices": 400, "per_device": 2}, "class 0 has 60 examples for 80 devices"),
        ({"each": 30, "per_device": 11}, "classes_per_device: got 11; it takes at most the 10 classes"),
        ({"each": 30, "labels": np.arange(90) % 9}, "class 9 has no examples to draw from"),
        ({"each": 1}, "examples_per_device: got 1; it takes at least one for each of 2 classes"),
    ],
)
def test_a_partition_that_is_not_possible_is_refused(changes, said):
    with pytest.raises(BadInput, match=said):
        split(**changes)
