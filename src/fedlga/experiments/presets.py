"""The presets: experiments by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from fedlga.core.settings import choose
from fedlga.experiments.config import Experiment

_CIFAR = {"model": "resnet20", "augment": True, "steps_per_epoch": 0, "lr": 0.01, "rounds": 400}
_BATCHES = {"steps_per_epoch": 1, "rounds": 3000, "evaluate_every": 50}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper-epochs": {"steps_per_epoch": 0, "lr": 0.01, "rounds": 20, "target": 0.7},
    "cifar10": {**_CIFAR, "dataset": "cifar-10", "target": 0.55},
    "cifar100": {**_CIFAR, "dataset": "cifar-100", "target": 0.40, "classes_per_device": 20},
    "cifar10-batches": {**_CIFAR, **_BATCHES, "dataset": "cifar-10", "target": 0.55},
    "cifar100-batches": {
        **_CIFAR,
        **_BATCHES,
        "dataset": "cifar-100",
        "lr": 0.1,
        "target": 0.40,
        "classes_per_device": 20,
    },
    "digits": {
        "dataset": "digits",
        "devices": 20,
        "cohort": 5,
        "steps_per_epoch": 0,
        "lr": 0.05,
        "rounds": 30,
        "target": 0.85,
        "backend": "serial",
    },
}
PRESETS["fleet"] = {
    "method": "fedavg",
    "stragglers": "complete",
    "fleet": "speeds",
    "slow_classes": (0, 1, 2, 3),
    "deadline": 5.0,
    "lr": 0.1,
    "rounds": 150,
    "target": 0.75,
    "evaluate_every": 3,
}
PRESETS["phones"] = {
    "method": "fedavg",
    "stragglers": "complete",
    "fleet": "population",
    "devices": 10000,
    "cohort": 50,
    "partition": "dirichlet",
    "available": 0.15,
    "dropout": 0.08,
    "deadline": 4.0,
    "lr": 0.1,
    "rounds": 200,
    "target": 0.75,
    "evaluate_every": 5,
}
PRESETS["shakespeare"] = {"task": "shakespeare"}
PRESET_MEANINGS = {
    "paper": "the FedLGA paper on Fashion-MNIST, one unit of work = one batch (the default)",
    "paper-epochs": "the same, one unit of work = one pass over the device's data",
    "fleet": "the same devices are always slow, and hold what the others do not: four classes of ten",
    "phones": "10,000 phones by published figures: speed, connection, hours of the day (docs/phones.md)",
    "cifar10": "the paper on CIFAR-10 with ResNet-20 (hours on a CPU)",
    "cifar10-batches": "the same, one unit of work = one batch (an hour on a CPU)",
    "cifar100": "the paper on CIFAR-100 with ResNet-20 (hours on a CPU)",
    "cifar100-batches": "the same, one unit of work = one batch (an hour on a CPU)",
    "shakespeare": "next character, one device a speaking role of Shakespeare's plays, with an LSTM",
    "digits": "small data that comes with the package: a first step, in seconds",
}


def preset(name: str) -> Experiment:
    """Return a preset by name."""
    changes = PRESETS[choose("preset", name, PRESETS)]
    if "task" not in changes:
        return dataclasses.replace(Experiment().changed(changes))  # all of it is meant: nothing is left to a task
    from fedlga.learning.task import load_task

    return Experiment(task=changes["task"]).changed(load_task(changes["task"]).experiment)
