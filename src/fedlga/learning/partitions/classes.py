"""The FedLGA paper's partition: each device holds a few classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fedlga.core.settings import BadInput, setting
from fedlga.learning.partitions.base import Partition

if TYPE_CHECKING:
    from fedlga.core.types import Array
    from fedlga.learning.partitions.base import Part


@final
@dataclass(frozen=True)
class ByClasses(Partition):
    """Each device holds `classes_per_device` classes, and a class is split evenly among the devices that hold it."""

    classes_per_device: int = setting(2, "P, classes that each device holds", least=1)
    examples_per_device: int = setting(
        0, "drawn with replacement for each device, so devices may share; 0: every example goes to one device", least=0
    )

    needs_classes = True

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        per_device, classes = settings["classes_per_device"], experiment["classes"]
        if classes is not None and per_device > classes:
            raise BadInput(
                f"classes_per_device: got {per_device}; it takes 1 to {classes}, the classes of {experiment['dataset']}"
            )
        return dict(settings)

    @property
    def shares_examples(self) -> bool:  # noqa: D102
        return self.examples_per_device > 0

    def split(self, labels: Array, classes: int, devices: int, rng: np.random.Generator) -> list[Part]:  # noqa: D102
        per_device = self.classes_per_device
        if per_device > classes:
            raise BadInput(
                f"classes_per_device: got {per_device}; it takes at most the {classes} classes of the dataset"
            )
        if self.examples_per_device:
            return self._draw(labels, classes, devices, rng)
        if devices * per_device < classes:
            raise BadInput(
                f"devices: {devices} devices with {per_device} classes each hold {devices * per_device} of "
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
                    f"devices: class {label} has {len(rows)} examples for {len(who)} devices; it takes fewer devices"
                )
            for device, rows_of_device in zip(who, np.array_split(rows, len(who)), strict=True):
                held[device].append(rows_of_device)
        return [np.sort(np.concatenate(rows)) for rows in held]

    def _draw(self, labels: Array, classes: int, devices: int, rng: np.random.Generator) -> list[Part]:
        """Let each device draw its own examples, evenly from its classes."""
        per_device, examples = self.classes_per_device, self.examples_per_device
        if len(empty := np.flatnonzero(np.bincount(labels, minlength=classes) == 0)):
            raise BadInput(f"examples_per_device: class {empty[0]} has no examples to draw from")
        if examples < per_device:
            raise BadInput(
                f"examples_per_device: got {examples}; it takes at least one for each of {per_device} classes"
            )
        by_class = np.argsort(labels, kind="stable")
        held = np.bincount(labels, minlength=classes)
        starts = np.cumsum(held) - held
        chosen = np.argsort(rng.random((devices, classes)), axis=1)[:, :per_device]
        turns = np.arange(examples)[None, :] % per_device + np.zeros((devices, 1), int)
        which = np.take_along_axis(chosen, turns, axis=1)
        rows = by_class[starts[which] + (rng.random((devices, examples)) * held[which]).astype(int)]
        return list(np.sort(rows, axis=1))
