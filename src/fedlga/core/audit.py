"""How close completed updates come to the ones the devices would have sent: the paper's aim, its Eq. 3, measured.

Only a simulation can know. With `audit` on, every straggler is also run to the end of its work, on the same batches,
outside the federation; nothing of it reaches the run. An error of 1 is what doing nothing gives, 0 is the truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from fedlga.core.aggregation.mean import mean_of
from fedlga.core.method import weigh_delta
from fedlga.core.types import Contribution

if TYPE_CHECKING:
    from fedlga.core.types import Vector


def measure_round(
    received: Sequence[Contribution], used: Sequence[Contribution], gaps: Gaps | None = None
) -> dict[str, Any]:
    """Return one round's errors: sums over its stragglers, so that rounds can be added up, and the true scales.

    `gaps` are those of `measure_gaps`, if the caller has them.
    `completed`, `sent`, `best`: sums of |truth - completed|, |truth - sent| and |truth - the best multiple of sent|.
    `completed_squares`: the sum of |truth - completed|^2.
    `mean_completed`, `mean_sent`: the same distances for the round's averaged update.
    """
    stragglers = [(c.update, c.update.truth) for c in received if c.update.truth is not None]
    scales = {c.update.device: c.scale for c in used}
    sums = {"stragglers": len(stragglers), "completed": 0.0, "completed_squares": 0.0, "sent": 0.0, "best": 0.0}
    true_scales: dict[int, float] = {}
    for u, truth in stragglers:
        square = float(torch.dot(u.delta, u.delta))
        scale = float(torch.dot(truth, u.delta)) / square if square > 0 else 1.0
        true_scales[u.device] = scale
        sums["sent"] += _distance(truth, u.delta)
        sums["best"] += _distance(truth, u.delta * scale)
        error = _distance(truth, u.delta * scales.get(u.device, math.nan))
        sums["completed"] += error
        sums["completed_squares"] += error**2
    means = {"mean_completed": 0.0, "mean_sent": 0.0}
    gaps = gaps or measure_gaps(received, used)
    if gaps is not None:
        means = {"mean_completed": measure_length(gaps.completed), "mean_sent": measure_length(gaps.sent)}
    error = sums["completed"] / sums["sent"] if sums["sent"] > 0 else None
    return {"error": error, **sums, **means, "true_scales": true_scales}


@dataclass(frozen=True)
class Gaps:
    """What the round's averaged update lacks to the true one: with completed updates, and with updates as sent."""

    completed: Vector
    sent: Vector

    def add(self, other: Gaps) -> Gaps:
        """Return the gaps of both rounds together."""
        return Gaps(self.completed + other.completed, self.sent + other.sent)


def measure_gaps(received: Sequence[Contribution], used: Sequence[Contribution]) -> Gaps | None:
    """Return the gaps of one round; None if no device was slow, or if some updates were not used.

    Gaps can be added up over rounds: noise averages out of the sum, and what is missing every time does not.
    """
    if all(c.update.truth is None for c in received) or len(used) < len(received):
        return None
    true_mean = _mean([_with_truth(c) for c in received])
    return Gaps(true_mean - _mean(used), true_mean - _mean(received))


class Audited(Protocol):
    """A round, as far as it matters here."""

    @property
    def audit(self) -> dict[str, Any] | None:
        """What `measure_round` returned; None if the round was not audited."""
        ...


def average_errors(records: Iterable[Audited]) -> dict[str, float | None]:
    """Return a run's errors: of completed updates, of the best possible multiples, and of the averaged update."""
    audits = [r.audit for r in records if r.audit]

    def ratio(above: str, below: str) -> float | None:
        known = [(a[above], a[below]) for a in audits if _is_finite(a[above]) and _is_finite(a[below])]
        total = sum(under for _, under in known)
        return sum(over for over, _ in known) / total if 0 < total < math.inf else None

    return {
        "approximation_error": ratio("completed", "sent"),
        "best_scale_error": ratio("best", "sent"),
        "aggregate_error": ratio("mean_completed", "mean_sent"),
    }


def _is_finite(value: float | None) -> bool:
    """Updates of a run that diverges have no length."""
    return value is not None and math.isfinite(value)


def _mean(contributions: Sequence[Contribution]) -> Vector:
    return mean_of([weigh_delta(c) for c in contributions])


def _with_truth(c: Contribution) -> Contribution:
    """Return the contribution as if the device had finished."""
    return c if c.update.truth is None else replace(c, update=replace(c.update, delta=c.update.truth))


def measure_length(vector: Vector) -> float:
    """Return |vector|."""
    return math.sqrt(float(torch.dot(vector, vector)))


def _distance(a: Vector, b: Vector) -> float:
    return measure_length(a - b)
