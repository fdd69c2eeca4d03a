"""Pictures of a partition: who holds what, as text and as a figure."""

from __future__ import annotations

import numpy as np
import pytest

from fedlga.core.settings import BadInput
from fedlga.learning.partitions.base import count_classes, make_parts
from fedlga.learning.partitions.classes import ByClasses
from fedlga.report.partition import draw_partition, format_partition


def test_the_picture_shows_who_holds_what():
    table = np.array([[4, 0, 1], [0, 2, 0]])
    lines = format_partition(table).splitlines()
    assert lines[1] == "     0  |██  ░░|      5"
    assert lines[2] == "     1  |  ▒▒  |      2"
    assert "7 examples; a device holds 2 to 5" in lines[3]


def test_the_picture_of_many_devices_and_classes_fits_a_terminal():
    lines = format_partition(np.ones((5000, 100), dtype=int)).splitlines()
    assert max(map(len, lines)) <= 130
    assert len(lines) < 70
    assert "and 4940 more devices" in "\n".join(lines)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_figure_is_written(tmp_path, suffix):
    file = tmp_path / f"held.{suffix}"
    labels = np.arange(600) % 10
    parts = make_parts(ByClasses(classes_per_device=2), labels, 10, 10, 0)
    draw_partition(count_classes(parts, labels, 10), "digits", file)
    assert file.stat().st_size > 2000


def test_a_figure_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(BadInput, match=r"--out: cannot write '.*held\.png' \(No such file or directory\)"):
        draw_partition(np.ones((2, 3), dtype=int), "digits", tmp_path / "nowhere" / "held.png")
