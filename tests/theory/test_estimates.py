"""What is measured of a federation: quadratics, of which everything is known; and numbers by other ways."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from federations import Quadratic
from fedlga.core.process import one_thread
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.experiments.statistics import t_quantile
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.objective import Objective
from fedlga.theory import estimates as module
from fedlga.theory.estimates import Interval, estimate, iterate_power, measure_curvature


def mean(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


def quadratics(rows: list[list[float]], parts: list[list[int]]) -> Objective:
    """Return devices whose examples are a/2 |w - b|^2, as rows of a, b_1, b_2."""
    examples = TensorExamples(torch.tensor(rows), torch.zeros(len(rows)))
    shares = [1 / len(parts)] * len(parts)
    return Objective(FlatModel(Quadratic((0.0, 0.0)), mean), examples, [np.array(part) for part in parts], shares)


def test_quadratics_by_hand():
    # Device 0: a = 2, centres (1, 0) and (3, 0). Device 1: a = 4, centre (0, 2), twice.
    objective = quadratics([[2, 1, 0], [2, 3, 0], [4, 0, 2], [4, 0, 2]], [[0, 1], [2, 3]])
    found = estimate(objective, torch.zeros(2), batch_size=1)
    # At 0: gradients -2 and -6, and (0, -8) twice. grad F_0 = (-4, 0), grad F_1 = (0, -8), grad f = (-2, -4).
    assert found.objective == Interval.exact((1 + 9 + 8 + 8) / 4)
    assert found.squared_gradient == Interval.exact(pytest.approx(20))
    assert found.curvature.value == pytest.approx(4)
    # A batch of device 0 is 2 away from its gradient, one of device 1 is not.
    assert found.local_variance.value == pytest.approx((4 + 0) / 2)
    assert found.largest_local_variance == pytest.approx(4)
    # Both devices are (2, 4) away from the joint gradient.
    assert found.global_variance == Interval.exact(pytest.approx(20))
    assert found.gradient_length == Interval.exact(pytest.approx(6))
    assert found.gradient4 == Interval.exact(pytest.approx((4**4 + 8**4) / 2))
    assert (found.measured, found.devices) == (2, 2)
    assert found.largest_gradient_length == pytest.approx(8)


def test_a_batch_of_all_data_has_no_noise():
    objective = quadratics([[2, 1, 0], [2, 3, 0]], [[0, 1]])
    assert estimate(objective, torch.zeros(2), batch_size=5).local_variance.value == pytest.approx(0, abs=1e-10)


def test_the_noise_of_batches_is_covered_by_its_interval():
    """Of n examples, batches of b without replacement have a variance of s^2 / b (n - b) / (n - 1)."""
    rng = np.random.default_rng(0)
    rows = [[1.0, *rng.standard_normal(2)] for _ in range(40)]
    examples = np.array(rows)[:, 1:]
    exact = ((examples - examples.mean(0)) ** 2).sum(1).mean() / 8 * (40 - 8) / 39
    intervals = [
        estimate(quadratics(rows, [list(range(40))]), torch.zeros(2), batch_size=8, seed=s).local_variance
        for s in range(40)
    ]
    covered = sum(i.low <= exact <= i.high for i in intervals)
    assert covered >= 34  # 38 of 40 on average; below 34 has a chance of 1 in 100
    assert np.mean([i.value for i in intervals]) == pytest.approx(exact, rel=0.05)


def test_an_interval_is_as_wide_as_estimates_differ():
    """Two batches make a pass: cut from one, they are equally far from their mean, and count as one draw."""
    rows = [[1.0, x, y] for x, y in [(0, 0), (3, 0), (1, 7), (0, 2)]]
    objective = quadratics(rows, [[0, 1, 2, 3]])
    found = [estimate(objective, torch.zeros(2), batch_size=2, seed=seed).local_variance for seed in range(80)]
    errors = [(i.high - i.value) / t_quantile(module.BATCHES) for i in found]
    assert np.std([i.value for i in found]) / np.mean(errors) == pytest.approx(1, abs=0.2)  # with pairs: sqrt(2)


def test_some_of_many_devices_with_an_interval(monkeypatch):
    """Of 300 devices, 100 are measured: intervals cover what all of them would give."""
    monkeypatch.setattr(module, "BATCHES", 2)
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((300, 2)) + np.array([3.0, 0])
    objective = quadratics([[1.0, *c] for c in centres], [[i] for i in range(300)])
    true = {
        "objective": (centres**2).sum(1).mean() / 2,
        "global_variance": ((centres - centres.mean(0)) ** 2).sum(1).mean(),
        "squared_gradient": (centres.mean(0) ** 2).sum(),
        "gradient4": ((centres**2).sum(1) ** 2).mean(),
    }
    covered = dict.fromkeys(true, 0)
    for seed in range(20):
        found = estimate(objective, torch.zeros(2), batch_size=1, seed=seed)
        assert found.measured == 100
        for name, value in true.items():
            interval = getattr(found, name)
            assert interval.value == pytest.approx(value, rel=0.3)
            covered[name] += interval.low <= value <= interval.high
    assert all(count >= 17 for count in covered.values()), covered


def test_the_device_with_the_largest_curvature_is_found(monkeypatch):
    rows = [[1.0 + 0.1 * i, 0, 0] for i in range(30)] + [[-9.0, 0, 0]]
    objective = quadratics(rows, [[i] for i in range(31)])
    found = estimate(objective, torch.zeros(2), batch_size=1).curvature
    assert found.value == pytest.approx(9)  # it curves downwards: what counts is how fast gradients change
    assert found.low <= 9.0001
    assert found.high >= 8.9999


def test_curvature_of_a_network_against_all_eigenvalues():
    with simulate(preset("digits").changed({"devices": 5, "cohort": 2})) as simulation:
        objective = Objective.of(simulation.devices)
        w = simulation.start.w
        rows = objective.parts[0]
        with objective.at(w):
            size, residual, vector = iterate_power(objective, rows, torch.ones_like(w), 200)
            product = objective.multiply_hessian(rows, vector)
        assert residual <= module.TOLERANCE * size
        assert float((product - float(vector @ product) * vector).norm()) <= 1.01 * residual
        # Lanczos, 30 steps with full orthogonalisation: another way to the same eigenvalue.
        with objective.at(w):
            basis = [torch.randn(len(w), generator=torch.Generator().manual_seed(0))]
            basis[0] /= basis[0].norm()
            matrix = np.zeros((30, 30))
            for k in range(30):
                image = objective.multiply_hessian(rows, basis[k])
                for j, other in enumerate(basis):
                    matrix[j, k] = float(image @ other)
                for other in basis + basis:
                    image = image - (image @ other) * other
                basis.append(image / image.norm())
        largest = np.abs(np.linalg.eigvalsh(matrix, UPLO="U")).max()
    assert size == pytest.approx(largest, rel=0.01)


def test_the_largest_curvature_of_all_devices_is_found_whatever_is_drawn():
    """Against 60 steps on all rows of every device."""
    with simulate(preset("digits")) as simulation:
        objective, w = Objective.of(simulation.devices), simulation.start.w
        with one_thread(), objective.at(w):
            gradients = [objective.gradient_of(part)[1] for part in objective.parts]
            starts = zip(objective.parts, gradients, strict=True)
            largest = max(iterate_power(objective, part, start, 60)[0] for part, start in starts)
            found = [
                measure_curvature(objective, objective.parts, gradients, np.random.default_rng(seed)).value
                for seed in range(5)
            ]
    assert found == pytest.approx([largest] * 5, rel=0.01)


def test_flat_losses_have_no_curvature():
    objective = quadratics([[0.0, 1, 0]], [[0]])
    assert estimate(objective, torch.zeros(2), batch_size=1).curvature == Interval.exact(0)


def test_roots():
    root = Interval(4, -1, 9).root()
    assert (root.value, root.low, root.high) == (2, 0, 3)
    assert not root.is_exact
    assert Interval.exact(math.pi).is_exact
