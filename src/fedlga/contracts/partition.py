"""What every partition must hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedlga.contracts.base import NotChecked, expect
from fedlga.core.registry import create
from fedlga.learning.partitions.base import make_parts

if TYPE_CHECKING:
    from fedlga.core.types import Array

LABELS = np.random.default_rng(0).integers(0, 10, 601)  # a prime number: no number of devices divides it


def split(name: str, seed: int = 0, devices: int = 20) -> list[Array]:
    """Return who holds what of a small dataset."""
    if name == "own":
        raise NotChecked("only a task has a partition of its own")
    return make_parts(create("partition", name), LABELS, 10, devices, seed)


def serves_everyone(name: str) -> None:
    """Every device holds at least one example, as sorted rows of the data."""
    for devices in (5, 20, 60):
        parts = split(name, devices=devices)
        expect(len(parts) == devices, f"{len(parts)} parts for {devices} devices")
        for device, part in enumerate(parts):
            expect(len(part) > 0, f"device {device} holds nothing")
            expect(part.min() >= 0 and part.max() < len(LABELS), f"device {device} holds rows that do not exist")
            expect((np.diff(part) >= 0).all(), f"the rows of device {device} are not sorted")


def loses_nothing(name: str) -> None:
    """Every example is held by exactly one device, unless devices share examples."""
    if create("partition", name).shares_examples:
        return
    rows = np.concatenate(split(name))
    expect(len(rows) == len(LABELS), f"{len(rows)} rows are held, of {len(LABELS)}")
    expect(len(np.unique(rows)) == len(LABELS), "an example is held twice")


def repeats(name: str) -> None:
    """The same seed gives the same partition, and another seed another one."""
    first, second, other = split(name), split(name), split(name, seed=1)
    expect(all(np.array_equal(a, b) for a, b in zip(first, second, strict=True)), "two partitions differ")
    same = all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    expect(not same, "another seed gives the same partition")


CHECKS = [serves_everyone, loses_nothing, repeats]
