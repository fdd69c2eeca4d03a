"""Unequal classes: how alpha changes them."""

from __future__ import annotations

import numpy as np
import pytest

from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.experiments.presets import preset
from fedlga.learning.partitions.base import count_classes, make_parts
from fedlga.learning.partitions.dirichlet import ByDirichlet


def test_smaller_alpha_is_more_unequal():
    def skew(alpha):
        labels = np.arange(4000) % 10
        return count_classes(make_parts(ByDirichlet(alpha), labels, 10, 20, 0), labels, 10).std()

    assert skew(0.05) > 2 * skew(10.0)


def test_devices_cannot_draw_examples_of_their_own():
    """That goes with classes and iid only, and an experiment says so."""
    with pytest.raises(BadInput, match=r"dirichlet\.examples_per_device: there is no such field"):
        create("partition", "dirichlet", {"examples_per_device": 5})
    said = r"examples_per_device: it is a setting of partition 'classes', and this experiment's is 'dirichlet'"
    with pytest.raises(BadInput, match=said):
        preset("digits").changed({"partition": "dirichlet", "examples_per_device": 5})
