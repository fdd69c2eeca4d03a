"""The task of a named dataset and model: images, one class each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fedlga.core.registry import find
from fedlga.learning.accelerator import CPU
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.models import Shape
from fedlga.learning.problem import fit_task
from fedlga.learning.task import Task, open_in_worker


def named_task(model: str, shape: Shape, classes: int) -> Task:
    """Return the task of a model that is a function of (shape, classes), by its name."""
    make = find("model", model)
    named = {"model": model, "shape": list(shape), "classes": classes}
    return Task(lambda: make(shape, classes), None, name=model, named=named)


def make_model(name: str, shape: Shape, classes: int, seed: int) -> FlatModel:
    """Return a named model with the starting weights of this seed: the same for every method."""
    images = TensorExamples(torch.zeros(2, *shape, device=CPU), torch.zeros(2, dtype=torch.int64, device=CPU))
    return fit_task(named_task(name, shape, classes), images, seed).model


def open_task(description: Mapping[str, Any]) -> Task:
    """Return the task that was described to this process."""
    if "named" in description:
        named = description["named"]
        return named_task(named["model"], tuple(named["shape"]), named["classes"])
    return open_in_worker(description)
