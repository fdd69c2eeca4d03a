"""Unequal amounts: how alpha changes them, and that classes stay mixed."""

from __future__ import annotations

import numpy as np

from fedlga.learning.partitions.base import count_classes, make_parts
from fedlga.learning.partitions.quantity import ByQuantity


def table_of(alpha, devices, examples):
    labels = np.arange(examples) % 10
    return count_classes(make_parts(ByQuantity(alpha), labels, 10, devices, 0), labels, 10)


def test_smaller_alpha_is_more_unequal():
    assert table_of(0.05, 20, 4000).std() > 2 * table_of(10.0, 20, 4000).std()


def test_unequal_amounts_leave_the_classes_mixed():
    table = table_of(2.0, devices=5, examples=20000)
    shares = table / table.sum(1, keepdims=True)
    assert np.abs(shares - 0.1).max() < 0.05
