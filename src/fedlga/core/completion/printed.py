"""The paper's Eq. 5 and 6 as printed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from fedlga.core.aggregation.mean import mean_of
from fedlga.core.completion.scales import Scales
from fedlga.core.method import WeightedVector
from fedlga.core.types import Update

if TYPE_CHECKING:
    from fedlga.core.types import Vector


def printed_scales(complete: Sequence[Update]) -> Scales:
    """Return the scales of Eq. 5 and 6 as printed: 1 + (g . d) / (-lr * steps), with d = w_hat - w_i.

    w_hat - w is the mean delta of the complete devices, g is -delta / (lr * steps): see methods/fedlga.py.
    """
    if not complete:
        return Scales(lambda u: 1.0, {})
    expected = mean_of([WeightedVector(u.delta, 1.0, 1.0) for u in complete])
    return Scales(lambda u: printed_scale(u, expected), {})


def printed_scale(update: Update, expected: Vector) -> float:
    """Return 1 + (g . d) / (-lr * steps), with d = expected - delta."""
    path = -update.lr * update.steps
    delta = update.delta
    g_dot_d = float(torch.dot(delta, expected) - torch.dot(delta, delta)) / path
    return 1 + g_dot_d / path
