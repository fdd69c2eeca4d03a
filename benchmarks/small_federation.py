"""Federations so small that everything about them is known: for benchmarks/theory.py.

Two problems, in numpy: quadratics with noise, and logistic regression on devices with different data. Many seeds are
run at once, an axis of every array. A round is the paper's Algorithm 2 with plain averaging; an unfinished update is
kept as it came, or multiplied by E / E_i (scale `linear` of the policy `complete`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlga.theory.theorems import Constants, Setting

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
ERROR_ROUNDS = 50  # in which the error of updates is measured


class Problem(ABC):
    """N devices with losses F_i, and f, their mean. Arrays of weights are seeds x devices x dimension."""

    name: str
    start: Array  # w_0

    @abstractmethod
    def draw_gradient(self, w: Array, devices: Indices, rng: np.random.Generator) -> Array:
        """Return a stochastic gradient of F_i at each w."""

    @abstractmethod
    def gradient(self, w: Array) -> Array:
        """Return grad f at weights of seeds x dimension."""

    @abstractmethod
    def constants(self) -> Constants:
        """Return L, sigma_l^2, sigma_g^2 and f(w_0) - f*; without the error of completed updates."""


class Quadratics(Problem):
    """F_i(w) = 1/2 (w - b_i)' A (w - b_i), with Gaussian noise on every gradient.

    All devices have the same A, so |grad F_i - grad f| is the same at all weights, as Assumption 3 wants it.
    L = sigma_l^2 = sigma_g^2 = f(w_0) - f* = 1.
    """

    name = "quadratics"

    def __init__(self, devices: int, dimension: int = 10) -> None:
        rng = np.random.default_rng(7)
        self.curvature = np.geomspace(0.05, 1.0, dimension)
        centres = rng.standard_normal((devices, dimension))
        centres -= centres.mean(0)  # the optimum is 0
        spread = ((self.curvature * centres) ** 2).sum(1).mean()
        self.centres = centres / np.sqrt(spread) if spread > 0 else centres
        direction = np.ones(dimension)
        self.start = direction / np.sqrt(0.5 * (self.curvature * direction**2).sum())

    def draw_gradient(self, w: Array, devices: Indices, rng: np.random.Generator) -> Array:  # noqa: D102
        noise = rng.standard_normal(w.shape) / np.sqrt(w.shape[-1])
        return self.curvature * (w - self.centres[devices]) + noise

    def gradient(self, w: Array) -> Array:  # noqa: D102
        return self.curvature * w

    def constants(self) -> Constants:  # noqa: D102
        sigma_g2 = float(((self.curvature * self.centres) ** 2).sum(1).mean())
        return Constants(L=1.0, sigma_l2=1.0, sigma_g2=sigma_g2, gap=1.0)


class Logistic(Problem):
    """Logistic regression: every device has its own inputs and true weights. Batches are drawn with replacement."""

    name = "logistic regression"
    examples, batch, decay = 32, 4, 0.01

    def __init__(self, devices: int, dimension: int = 10) -> None:
        rng = np.random.default_rng(7)
        truths = rng.standard_normal(dimension) + rng.standard_normal((devices, dimension))
        self.inputs = rng.standard_normal((devices, self.examples, dimension))
        self.inputs += rng.standard_normal((devices, 1, dimension)) / 2
        chance = 1 / (1 + np.exp(-np.einsum("ned,nd->ne", self.inputs, truths)))
        self.labels = (rng.random(chance.shape) < chance).astype(float)
        self.start = np.full(dimension, 2.0)

    def draw_gradient(self, w: Array, devices: Indices, rng: np.random.Generator) -> Array:  # noqa: D102
        rows = rng.integers(self.examples, size=(*w.shape[:2], self.batch))
        x, y = self.inputs[devices[..., None], rows], self.labels[devices[..., None], rows]
        wrong = 1 / (1 + np.exp(-np.einsum("smbd,smd->smb", x, w))) - y
        return np.einsum("smb,smbd->smd", wrong, x) / self.batch + self.decay * w

    def device_gradients(self, w: Array) -> Array:
        """Return grad F_i of every device at one w."""
        wrong = 1 / (1 + np.exp(-self.inputs @ w)) - self.labels
        return np.einsum("ne,ned->nd", wrong, self.inputs) / self.examples + self.decay * w

    def gradient(self, w: Array) -> Array:  # noqa: D102
        x = self.inputs.reshape(-1, self.inputs.shape[-1])
        wrong = 1 / (1 + np.exp(-w @ x.T)) - self.labels.reshape(-1)
        return wrong @ x / len(x) + self.decay * w

    def value(self, w: Array) -> float:
        """Return f at one w."""
        z = self.inputs @ w
        return float((np.logaddexp(0, z) - self.labels * z).mean() + 0.5 * self.decay * (w**2).sum())

    def optimum(self) -> Array:
        """Return the weights at which f is smallest, by Newton's method."""
        w, x = np.zeros_like(self.start), self.inputs.reshape(-1, self.inputs.shape[-1])
        for _ in range(50):
            p = 1 / (1 + np.exp(-x @ w))
            hessian = (x * (p * (1 - p))[:, None]).T @ x / len(x) + self.decay * np.eye(len(w))
            w = w - np.linalg.solve(hessian, self.gradient(w[None])[0])
        return w

    def constants(self) -> Constants:
        """L bounds the curvature everywhere; the variances are those at w_0."""
        squares = np.einsum("ned,nef->ndf", self.inputs, self.inputs) / self.examples
        smoothness = 0.25 * float(np.linalg.eigvalsh(squares)[:, -1].max()) + self.decay
        each = self.device_gradients(self.start)
        wrong = 1 / (1 + np.exp(-self.inputs @ self.start)) - self.labels
        singles = wrong[..., None] * self.inputs + self.decay * self.start
        sigma_l2 = float(((singles - each[:, None]) ** 2).sum(2).mean()) / self.batch
        sigma_g2 = float(((each - each.mean(0)) ** 2).sum(1).mean())
        return Constants(smoothness, sigma_l2, sigma_g2, gap=self.value(self.start) - self.value(self.optimum()))


@dataclass(frozen=True)
class Arm:
    """What becomes of unfinished work, and whether the same devices are slow in every round."""

    name: str
    completes: bool = True
    same: bool = False


@dataclass(frozen=True)
class Curves:
    """What a run gives: |grad f(w_t)|^2 before each round, rounds x seeds, and the mean squared error of updates."""

    squared_gradients: Array
    error2: float  # E |true update - update used|^2 of the unfinished ones, in the first rounds


def run(problem: Problem, s: Setting, arm: Arm, seeds: int, seed: int = 0) -> Curves:
    """Run T rounds for many seeds at once. Every run starts at the problem's w_0.

    rho of the devices in a round are slow: E_i is uniform in 1..E - 1. With E = 1 nobody can be.
    """
    rng = np.random.default_rng((seed, s.N, s.K or 0, s.E, s.T))
    w = np.tile(problem.start, (seeds, 1))
    squares = np.zeros((s.T, seeds))
    count = s.taking_part
    everyone = np.tile(np.arange(s.N), (seeds, 1))
    always = np.random.default_rng(3).permutation(s.N) < round(s.rho * s.N)  # these, if the same are slow
    errors: list[float] = []
    for t in range(s.T):
        squares[t] = (problem.gradient(w) ** 2).sum(1)
        devices = everyone if s.K is None else rng.integers(s.N, size=(seeds, count))
        if arm.same:
            slow = always[devices]
        else:  # rho * count need not be whole: round at random
            number = np.floor(s.rho * count + rng.random((seeds, 1)))
            slow = np.argsort(rng.random((seeds, count)), axis=1) < number
        steps = np.where(slow & (s.E > 1), rng.integers(1, max(s.E, 2), size=(seeds, count)), s.E)
        w, error2 = run_round(problem, s, arm, w, devices, steps, rng)
        if error2 is not None and t < ERROR_ROUNDS:
            errors.append(error2)
    return Curves(squares, float(np.mean(errors)) if errors else 0.0)


def run_round(
    problem: Problem, s: Setting, arm: Arm, w: Array, devices: Indices, steps: Indices, rng: np.random.Generator
) -> tuple[Array, float | None]:
    """Return the weights after a round in which each device did so many steps, and the error of unfinished updates."""
    local = np.repeat(w[:, None], devices.shape[1], axis=1)
    used = np.zeros_like(local)
    for e in range(s.E):  # also those who are slow: what they would have sent is known here
        local = local - s.eta_l * problem.draw_gradient(local, devices, rng)
        done = steps == e + 1
        used[done] = (local - w[:, None])[done]
    if arm.completes:
        used *= (s.E / steps)[..., None]
    unfinished = steps < s.E
    truth = local - w[:, None]
    error2 = float(((truth - used) ** 2).sum(2)[unfinished].mean()) if unfinished.any() else None
    return w + s.eta_g * used.mean(1), error2
