"""What the theorems need to know of a federation, measured at given weights: L, sigma_l, sigma_g, |grad F_i|.

The assumptions ask for constants that hold at all weights. What can be measured is their value at some: a theorem with
these numbers is about the neighbourhood of those weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlga.core.process import one_thread
from fedlga.core.randomness import Stream, generator
from fedlga.experiments.statistics import t_quantile

if TYPE_CHECKING:
    from fedlga.core.types import Array, Vector
    from fedlga.learning.objective import Objective

MOST_DEVICES = 100  # measured; of more devices, so many are drawn
MOST_BYTES = 1e9  # of the devices' gradients that are kept at the same time
BATCHES = 20  # of each device, for the noise of a batch
SCREENED_ROWS = 100  # of each device, to find the devices with the largest curvature
SCREEN_STEPS = 8  # of the power iteration, on these rows
REFINED = 5  # devices whose curvature is measured on all their data
REFINE_STEPS = 30
RANDOM_PART = 0.1  # of the vector that the power iteration starts from, beside the gradient
TOLERANCE = 0.01  # the power iteration ends when its residual is this share of the eigenvalue


@dataclass(frozen=True)
class Interval:
    """A measured value, and its 95 % interval; both ends are the value if nothing was drawn to measure it."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Return a value that was not estimated from draws."""
        return cls(value, value, value)

    @property
    def is_exact(self) -> bool:
        """Whether nothing was drawn to measure it."""
        return self.low == self.value == self.high

    def root(self) -> Interval:
        """Return the interval of the square root."""
        return Interval(*(math.sqrt(max(0.0, end)) for end in (self.value, self.low, self.high)))


@dataclass(frozen=True)
class Estimates:
    """A federation at given weights. Means are over devices, as in the proofs; `largest` over those measured."""

    devices: int  # in the federation
    measured: int  # of these, drawn at random if not all
    objective: Interval  # f
    squared_gradient: Interval  # |grad f|^2
    curvature: Interval  # L: the largest |eigenvalue| of a device's Hessian. Certain is only that it is not below `low`
    local_variance: Interval  # sigma_l^2: of a batch's gradient around its device's
    largest_local_variance: float
    global_variance: Interval  # sigma_g^2: of devices' gradients around the joint one
    largest_global_variance: float
    gradient_length: Interval  # |grad F_i|
    largest_gradient_length: float
    gradient4: Interval  # |grad F_i|^4


def estimate(
    objective: Objective,
    w: Vector,
    buffers: Vector | None = None,
    *,
    batch_size: int,
    seed: int = 0,
    most_devices: int = MOST_DEVICES,
) -> Estimates:
    """Measure a federation at these weights. Batches and devices are drawn from the seed."""
    rng = generator(seed, Stream.ESTIMATES)
    count = len(objective.parts)
    most = max(2, min(most_devices, int(MOST_BYTES / objective.model.gradient.nbytes)))
    chosen = np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))
    parts: list[Array] = [objective.parts[int(device)] for device in chosen]
    shares = np.array([objective.weights[int(device)] for device in chosen])
    shares = shares / shares.sum()
    with one_thread(), objective.at(w, buffers):  # pieces are small: more threads wait for each other
        losses, gradients = zip(*(objective.gradient_of(part) for part in parts), strict=True)
        joint = torch.zeros_like(gradients[0])
        for share, gradient in zip(shares, gradients, strict=True):
            joint.add_(gradient, alpha=float(share))
        noises = [
            _measure_noise(objective, part, gradient, batch_size, rng)
            for part, gradient in zip(parts, gradients, strict=True)
        ]
        lengths2 = np.array([_square(gradient) for gradient in gradients])
        apart = np.array([_square(gradient - joint) for gradient in gradients])
        curvature = measure_curvature(objective, parts, gradients, rng)
        del gradients
    unseen = 1 - len(chosen) / count  # share of the devices that were not measured
    if unseen:  # the mean of a sample is nearer to it than to the mean of all
        apart = apart * len(chosen) / (len(chosen) - 1)
    variance = _mean(apart, shares, unseen)
    return Estimates(
        devices=count,
        measured=len(chosen),
        objective=_mean(np.array(losses), shares, unseen),
        squared_gradient=_square_of_mean(_square(joint), variance.value * float((shares**2).sum()) * unseen, unseen),
        curvature=curvature,
        local_variance=_mean_of_means(noises, shares, unseen),
        largest_local_variance=max(float(values.mean()) for values in noises),
        global_variance=variance,
        largest_global_variance=float(apart.max()),
        gradient_length=_mean(np.sqrt(lengths2), shares, unseen),
        largest_gradient_length=float(np.sqrt(lengths2.max())),
        gradient4=_mean(lengths2**2, shares, unseen),
    )


def measure_curvature(
    objective: Objective, parts: Sequence[Array], gradients: Sequence[Vector], rng: np.random.Generator
) -> Interval:
    """Return the largest |eigenvalue| of the Hessian of any of these parts, by power iteration.

    All parts are tried with a few steps on some of their rows; those that come out highest then get more steps, on all
    rows. The iteration starts near the part's gradient, which lies mostly in the directions that curve most: from a
    random start, a few steps find a fraction of the eigenvalue, and say little about which part has the largest.

    `low` is a Rayleigh quotient, which no eigenvalue's largest size is below; `high` adds the residual
    |H v - lambda v|, within which there is an eigenvalue.
    """
    length = len(objective.model.vector)
    tried: list[tuple[float, Array, Vector]] = []
    for part, gradient in zip(parts, gradients, strict=True):
        start = torch.from_numpy(rng.standard_normal(length).astype(np.float32)).to(objective.model.device)
        start /= _length(start)
        if (slope := _length(gradient)) > 0:
            start = gradient / slope + RANDOM_PART * start
        rows = part if len(part) <= SCREENED_ROWS else rng.choice(part, SCREENED_ROWS, replace=False)
        size, _, vector = iterate_power(objective, rows, start, SCREEN_STEPS)
        tried.append((size, part, vector))
        tried = sorted(tried, key=lambda item: -item[0])[:REFINED]  # the vectors of all would take memory
    refined = [iterate_power(objective, part, vector, REFINE_STEPS)[:2] for _, part, vector in tried]
    size, residual = max(refined)
    return Interval(size, size, max(value + rest for value, rest in refined) if residual else size)


def iterate_power(objective: Objective, rows: Array, start: Vector, steps: int) -> tuple[float, float, Vector]:
    """Return the size of the Hessian's largest eigenvalue on these rows, the residual, and the eigenvector."""
    vector: Vector = start / _length(start)
    size, residual = 0.0, 0.0
    for _ in range(steps):
        product = objective.multiply_hessian(rows, vector)
        value = float(torch.dot(vector, product))
        size, residual = abs(value), _length(product - value * vector)
        length = _length(product)
        if length == 0 or not math.isfinite(length):
            return size, 0.0, vector
        if residual <= TOLERANCE * size:
            break
        vector = product / length
    return size, residual, vector


def _measure_noise(
    objective: Objective, part: Array, gradient: Vector, batch_size: int, rng: np.random.Generator
) -> Array:
    """Return |gradient of a batch - gradient of the device|^2 of some batches.

    Each is as a batch of training, anywhere in a pass over the data; the last of a pass may be smaller. But every batch
    is drawn on its own: batches of one pass depend on each other, and an interval from them would be too narrow.
    """
    in_a_pass = -(-len(part) // batch_size)
    values: list[float] = []
    for place in rng.integers(in_a_pass, size=BATCHES):
        size = min(batch_size, len(part) - int(place) * batch_size)
        _, of_batch = objective.gradient_of(rng.choice(part, size, replace=False))
        values.append(_square(of_batch - gradient))
    return np.array(values)


def _square(vector: Vector) -> float:
    return float(torch.dot(vector, vector))


def _length(vector: Vector) -> float:
    return math.sqrt(_square(vector))


def _mean(values: Array, shares: Array, unseen: float) -> Interval:
    """Return the mean over all devices, from those that were measured; exact if these are all."""
    mean = float(shares @ values)
    if not unseen:
        return Interval.exact(mean)
    return _around(mean, unseen * _error2(values, shares, mean), len(values))


def _mean_of_means(values: Sequence[Array], shares: Array, unseen: float) -> Interval:
    """Return the mean over devices of the mean over their batches. Both were drawn, if not all devices are measured."""
    means = np.array([each.mean() for each in values])
    mean = float(shares @ means)
    within = float((shares**2 * np.array([each.var(ddof=1) / len(each) for each in values])).sum())
    error2 = (1 - unseen) * within + unseen * _error2(means, shares, mean)  # means of different devices vary by both
    return _around(mean, error2, len(values) if unseen else BATCHES)


def _error2(values: Array, shares: Array, mean: float) -> float:
    """Return the squared standard error of the mean over devices."""
    return float((shares**2 * (values - mean) ** 2).sum()) * len(values) / max(1, len(values) - 1)


def _square_of_mean(square: float, excess: float, unseen: float) -> Interval:
    """Return |grad f|^2 from the mean of some devices' gradients, whose square is too large by `excess`."""
    if not unseen:
        return Interval.exact(square)
    length, error = math.sqrt(square), 2 * math.sqrt(excess)
    return Interval(max(0.0, square - excess), max(0.0, length - error) ** 2, (length + error) ** 2)


def _around(mean: float, error2: float, count: int) -> Interval:
    half = t_quantile(count) * math.sqrt(error2)
    return Interval(mean, max(0.0, mean - half), mean + half)
