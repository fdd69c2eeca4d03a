"""Who holds what: nothing lost, nothing twice, and the shape that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.data.partition import PARTITIONS, counts, partition
from fedlga.data.picture import as_text, draw
from fedlga.settings import BadInput


def deal(kind="classes", devices=10, examples=600, classes=10, per_device=2, alpha=0.5, seed=0, labels=None, each=0):
    labels = np.arange(examples) % classes if labels is None else labels
    asked = {"classes": classes, "classes_per_device": per_device, "alpha": alpha, "examples": each}
    return labels, partition(kind, labels, devices, seed, **asked)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(PARTITIONS),
    st.integers(1, 40),
    st.integers(2, 10),
    st.floats(0.01, 100),
    st.integers(0, 2**32),
    st.data(),
)
def test_every_example_goes_to_exactly_one_device(kind, devices, classes, alpha, seed, data):
    per_device = data.draw(st.integers(-(-classes // devices), classes))
    _, parts = deal(kind, devices, 1000, classes, per_device, alpha, seed)
    assert len(parts) == devices
    assert all(len(part) > 0 for part in parts)
    together = np.sort(np.concatenate(parts))
    assert np.array_equal(together, np.arange(1000))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 2**32), st.data())
def test_p_classes_a_device(devices, classes, seed, data):
    per_device = data.draw(st.integers(-(-classes // devices), classes))
    labels, parts = deal("classes", devices, 1200, classes, per_device, seed=seed)
    held = (counts(parts, labels, classes) > 0).sum(1)
    assert set(held) == {per_device}
    holders = (counts(parts, labels, classes) > 0).sum(0)
    assert holders.max() - holders.min() <= 1


def test_the_papers_partition_is_even():
    _, parts = deal("classes", devices=50, examples=6000, per_device=2)
    assert {len(part) for part in parts} == {120}


def test_iid_is_even_and_mixed():
    labels, parts = deal("iid", devices=7, examples=700)
    assert {len(part) for part in parts} == {100}
    assert ((counts(parts, labels, 10) > 0).sum(1) > 7).all()


def test_smaller_alpha_is_more_unequal():
    def skew(kind, alpha):
        labels, parts = deal(kind, devices=20, examples=4000, alpha=alpha)
        return counts(parts, labels, 10).std()

    assert skew("dirichlet", 0.05) > 2 * skew("dirichlet", 10.0)
    assert skew("quantity", 0.05) > 2 * skew("quantity", 10.0)


def test_quantity_skew_leaves_the_classes_mixed():
    labels, parts = deal("quantity", devices=5, examples=20000, alpha=2.0)
    table = counts(parts, labels, 10)
    shares = table / table.sum(1, keepdims=True)
    assert np.abs(shares - 0.1).max() < 0.05


def test_the_seed_decides():
    same, other = deal(seed=0)[1], deal(seed=1)[1]
    assert all(np.array_equal(a, b) for a, b in zip(deal(seed=0)[1], same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(other, same, strict=True))


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["classes", "iid"]), st.integers(1, 300), st.integers(3, 40), st.integers(1, 3))
def test_devices_may_draw_examples_of_their_own(kind, devices, each, per_device):
    """More devices than examples: nobody goes without, and each holds as many classes as were asked for."""
    labels, parts = deal(kind, devices=devices, examples=97, classes=7, per_device=per_device, each=each)
    assert [len(part) for part in parts] == [each] * devices
    held = counts(parts, labels, 7)
    if kind == "classes":
        assert set((held > 0).sum(1)) == {per_device}
        assert (held[held > 0] >= each // per_device).all()
    again = deal(kind, devices=devices, examples=97, classes=7, per_device=per_device, each=each)[1]
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"per_device": 11}, "classes_per_device: got 11; it takes at most the 10 classes"),
        ({"devices": 4, "per_device": 2}, "hold 8 of 10 classes"),
        ({"devices": 601}, "devices: got 601; the dataset has 600 examples"),
        ({"devices": 400, "per_device": 2}, "class 0 has 60 examples for 80 devices"),
        ({"kind": "dirichlet", "each": 5}, "examples_per_device: got 5; it goes with partition classes or iid"),
        ({"each": 30, "per_device": 11}, "classes_per_device: got 11; it takes at most the 10 classes"),
        ({"each": 30, "labels": np.arange(90) % 9}, "class 9 has no examples to draw from"),
        ({"each": 1}, "examples_per_device: got 1; it takes at least one for each of 2 classes"),
    ],
)
def test_what_cannot_be_dealt(changes, said):
    with pytest.raises(BadInput, match=said):
        deal(**changes)


def test_the_picture_shows_who_holds_what():
    table = np.array([[4, 0, 1], [0, 2, 0]])
    lines = as_text(table).splitlines()
    assert lines[1] == "     0  |██  ░░|      5"
    assert lines[2] == "     1  |  ▒▒  |      2"
    assert "7 examples; a device holds 2 to 5" in lines[3]


def test_the_picture_of_many_devices_and_classes_fits_a_terminal():
    lines = as_text(np.ones((5000, 100), dtype=int)).splitlines()
    assert max(map(len, lines)) <= 130
    assert len(lines) < 70
    assert "and 4940 more devices" in "\n".join(lines)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_figure_is_written(tmp_path, suffix):
    file = tmp_path / f"held.{suffix}"
    labels, parts = deal()
    draw(counts(parts, labels, 10), "digits", file)
    assert file.stat().st_size > 2000
