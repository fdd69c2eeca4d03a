"""Everyone holds a random sample."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.learning.partitions.base import count_classes, make_parts
from fedlga.learning.partitions.iid import Iid


def test_iid_is_even_and_mixed():
    labels = np.arange(700) % 10
    parts = make_parts(Iid(), labels, 10, 7, 0)
    assert {len(part) for part in parts} == {100}
    assert ((count_classes(parts, labels, 10) > 0).sum(1) > 7).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(3, 40))
def test_devices_may_draw_examples_of_their_own(devices, each):
    """More devices than examples: every device has data."""
    labels = np.arange(97) % 7

    def split():
        return make_parts(Iid(examples_per_device=each), labels, 7, devices, 0)

    parts = split()
    assert [len(part) for part in parts] == [each] * devices
    assert all(np.array_equal(a, b) for a, b in zip(parts, split(), strict=True))
