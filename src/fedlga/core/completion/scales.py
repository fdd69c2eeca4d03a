"""What the laws of completion share: the scales they give, and how work is counted.

Given only what devices send (delta, steps), the approximation of FedLGA is always a multiple of delta: see
methods/fedlga.py. What remains is to choose the number. Each law is a file of this folder: feedback.py, growth.py and
printed.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedlga.core.method import effective_steps
from fedlga.core.types import Update

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector


@dataclass(frozen=True)
class Scales:
    """The outcome: a scale for each straggler, what to remember, and what the record should say."""

    of: Callable[[Update], float]
    memory: Memory  # what the next round should know
    growth: float | None = None
    agreement: float | None = None


def work_ratio(update: Update) -> float:
    """Return all the work over the work done."""
    return count_work(update, update.steps_asked) / count_work(update, update.steps)


def count_work(update: Update, steps: int) -> float:
    """Return the steps, or what they amount to under momentum, where the first steps are shorter than later ones."""
    return effective_steps(steps, momentum=update.momentum)


def clamp(value: float) -> float:
    """Return the nearest number from 0 to 1."""
    return min(max(value, 0.0), 1.0)


def read_numbers(memory: Memory, name: str, count: int) -> list[float]:
    """Return numbers that a law kept in the server's memory; zeros before the first round."""
    return [float(value) for value in memory[name]] if name in memory else [0.0] * count


def pack_numbers(*values: float) -> Vector:
    """Return numbers for the server's memory."""
    return torch.tensor(values, dtype=torch.float64, device="cpu")
