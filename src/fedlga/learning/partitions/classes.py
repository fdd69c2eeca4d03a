"""Who holds what: ways to deal the training data to devices. Each example goes to exactly one device.

Or, for federations larger than their data, each device draws examples of its own, and devices may share some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..draws import Stream, generator
from ..settings import BadInput

if TYPE_CHECKING:
    from ..types import Array

    Part = Array  # the rows of the training data that one device holds

PARTITIONS = ("classes", "dirichlet", "iid", "quantity")


def partition(
    kind: str,
    labels: Array,
    devices: int,
    seed: int,
    *,
    classes: int,
    classes_per_device: int,
    alpha: float,
    examples: int = 0,
) -> list[Part]:
    """Deal the rows of `labels` to `devices` devices, or let each draw `examples` of them."""
    rng = generator(seed, Stream.PARTITION)
    if examples:
        return drawn(kind, labels, devices, rng, classes=classes, per_device=classes_per_device, examples=examples)
    if devices > len(labels):
        raise BadInput(
            f"devices: got {devices}; the dataset has {len(labels)} examples, and each device needs one "
            "(or set examples_per_device, and devices share them)"
        )
    if kind == "classes":
        return by_classes(labels, devices, rng, classes=classes, per_device=classes_per_device)
    if kind == "dirichlet":
        return by_dirichlet(labels, devices, rng, classes=classes, alpha=alpha)
    order = rng.permutation(len(labels))
    if kind == "iid":
        return [np.sort(part) for part in np.array_split(order, devices)]
    return cut(order, rng.dirichlet(np.full(devices, alpha)))


def drawn(
    kind: str, labels: Array, devices: int, rng: np.random.Generator, *, classes: int, per_device: int, examples: int
) -> list[Part]:
    """Each device draws its own, with replacement: from all data, or evenly from `per_device` classes of its own."""
    if kind not in ("classes", "iid"):
        raise BadInput(f"examples_per_device: got {examples}; it goes with partition classes or iid, not {kind}")
    if kind == "iid":
        return list(np.sort(rng.integers(0, len(labels), (devices, examples)), axis=1))
    if per_device > classes:
        raise BadInput(f"classes_per_device: got {per_device}; it takes at most the {classes} classes of the dataset")
    if len(empty := np.flatnonzero(np.bincount(labels, minlength=classes) == 0)):
        raise BadInput(f"examples_per_device: class {empty[0]} has no examples to draw from")
    if examples < per_device:
        raise BadInput(f"examples_per_device: got {examples}; it takes at least one for each of {per_device} classes")
    by_class = np.argsort(labels, kind="stable")
    held = np.bincount(labels, minlength=classes)
    starts = np.cumsum(held) - held
    chosen = np.argsort(rng.random((devices, classes)), axis=1)[:, :per_device]
    which = np.take_along_axis(chosen, np.arange(examples)[None, :] % per_device + np.zeros((devices, 1), int), axis=1)
    rows = by_class[starts[which] + (rng.random((devices, examples)) * held[which]).astype(int)]
    return list(np.sort(rows, axis=1))


def by_classes(labels: Array, devices: int, rng: np.random.Generator, *, classes: int, per_device: int) -> list[Part]:
    """The paper's: each device holds `per_device` classes, and a class is split evenly among those that hold it."""
    if per_device > classes:
        raise BadInput(f"classes_per_device: got {per_device}; it takes at most the {classes} classes of the dataset")
    if devices * per_device < classes:
        raise BadInput(
            f"classes_per_device: {devices} devices with {per_device} classes each hold {devices * per_device} of "
            f"{classes} classes; devices x classes_per_device takes at least {classes}, or data would be lost"
        )
    # Seats a class: as even as can be. Filling from the class with most seats left never gets stuck.
    seats = np.full(classes, devices * per_device // classes)
    seats[rng.permutation(classes)[: devices * per_device % classes]] += 1
    holders: list[list[int]] = [[] for _ in range(classes)]
    for device in rng.permutation(devices):
        ties = rng.permutation(classes)
        for label in ties[np.argsort(-seats[ties], kind="stable")][:per_device]:
            seats[label] -= 1
            holders[label].append(int(device))
    held: list[list[Array]] = [[] for _ in range(devices)]
    for label, who in enumerate(holders):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) < len(who):
            raise BadInput(
                f"devices: class {label} has {len(rows)} examples for {len(who)} devices; fewer devices, please"
            )
        for device, rows_of_device in zip(who, np.array_split(rows, len(who)), strict=True):
            held[device].append(rows_of_device)
    return [np.sort(np.concatenate(rows)) for rows in held]


def by_dirichlet(labels: Array, devices: int, rng: np.random.Generator, *, classes: int, alpha: float) -> list[Part]:
    """Each class is dealt in shares drawn from Dirichlet(alpha): smaller alpha, fewer devices that hold most of it."""
    held: list[list[Array]] = [[] for _ in range(devices)]
    for label in range(classes):
        rows = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(rng.dirichlet(np.full(devices, alpha))) * len(rows)).astype(int)
        for device, some in enumerate(np.split(rows, ends[:-1])):
            held[device].append(some)
    return _nobody_empty([np.concatenate(rows) for rows in held])


def cut(order: Array, shares: Array) -> list[Part]:
    """Cut `order` into consecutive parts of the given shares."""
    ends = np.round(np.cumsum(shares) * len(order)).astype(int)
    return _nobody_empty(np.split(order, ends[:-1]))


def _nobody_empty(parts: Sequence[Array]) -> list[Part]:
    """A device without data cannot train: those that came out empty get one example from the largest."""
    filled = list(parts)
    for index, part in enumerate(filled):
        if len(part) == 0:
            largest = max(range(len(filled)), key=lambda i: len(filled[i]))
            filled[index], filled[largest] = filled[largest][:1], filled[largest][1:]
    return [np.sort(part) for part in filled]


def counts(parts: Sequence[Part], labels: Array, classes: int) -> Array:
    """A table, devices x classes: how many examples each device holds of each class."""
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
