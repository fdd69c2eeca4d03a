"""Digits come with the package."""

from __future__ import annotations

import pytest

from fedlga.learning.datasets.cache import load


def test_digits_come_with_the_package(tmp_path):
    data = load("digits", tmp_path / "never made")
    assert (len(data.train_labels), len(data.test_labels), data.classes, data.shape) == (1438, 359, 10, (1, 8, 8))
    assert float(data.train_images.mean()) == pytest.approx(0, abs=1e-3)
    assert float(data.train_images.std()) == pytest.approx(1, abs=1e-3)
    assert not (tmp_path / "never made").exists()
