"""How close completed updates come to the ones the devices would have sent: the paper's aim, its Eq. 3, measured.

Only a simulation can know. With `audit` on, every straggler is also run to the end of its work, on the same batches,
outside the federation; nothing of it reaches the run. An error of 1 is what doing nothing gives, 0 is the truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .methods.base import mean_delta
from .types import Record, Update

if TYPE_CHECKING:
    from .types import Vector


def measured(sent: Sequence[Update], used: Sequence[Update]) -> dict[str, Any]:
    """One round: sums over its stragglers, so that rounds can be added up, and the scales.

    `completed`, `sent`, `best`: sums of |truth - completed|, |truth - sent| and |truth - the best multiple of sent|.
    `mean_completed`, `mean_sent`: the same distances for the round's averaged update.
    """
    stragglers = [u for u in sent if u.truth is not None]
    by_device = {u.device: u for u in used}
    sums = {"stragglers": len(stragglers), "completed": 0.0, "sent": 0.0, "best": 0.0}
    true_scales: dict[int, float] = {}
    for u in stragglers:
        truth = _truth(u)
        square = float(torch.dot(u.delta, u.delta))
        scale = float(torch.dot(truth, u.delta)) / square if square > 0 else 1.0
        true_scales[u.device] = scale
        sums["sent"] += _distance(truth, u.delta)
        sums["best"] += _distance(truth, u.delta * scale)
        used_scale = by_device[u.device].scale if u.device in by_device else math.nan
        sums["completed"] += _distance(truth, u.delta * used_scale)
    means = {"mean_completed": 0.0, "mean_sent": 0.0}
    if stragglers and len(used) == len(sent):
        true_mean = mean_delta(_with(u, u.delta if u.truth is None else u.truth) for u in sent)
        means["mean_completed"] = _distance(true_mean, mean_delta(used))
        means["mean_sent"] = _distance(true_mean, mean_delta(sent))
    error = sums["completed"] / sums["sent"] if sums["sent"] > 0 else None
    return {"error": error, **sums, **means, "true_scales": true_scales}


def errors(records: Iterable[Record]) -> dict[str, float | None]:
    """Over a run: the error of completed updates, of the best possible multiples, and of the averaged update."""
    audits = [r.audit for r in records if r.audit]

    def ratio(above: str, below: str) -> float | None:
        known = [(a[above], a[below]) for a in audits if _number(a[above]) and _number(a[below])]
        total = sum(under for _, under in known)
        return sum(over for over, _ in known) / total if 0 < total < math.inf else None

    return {
        "approximation_error": ratio("completed", "sent"),
        "best_scale_error": ratio("best", "sent"),
        "aggregate_error": ratio("mean_completed", "mean_sent"),
    }


def _number(value: float | None) -> bool:
    """Updates of a run that diverges have no length."""
    return value is not None and math.isfinite(value)


def _truth(update: Update) -> Vector:
    assert update.truth is not None
    return update.truth


def _with(update: Update, delta: Vector) -> Update:
    from dataclasses import replace

    return replace(update, delta=delta)


def _distance(a: Vector, b: Vector) -> float:
    gap = a - b
    return math.sqrt(float(torch.dot(gap, gap)))
