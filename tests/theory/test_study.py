"""The study's small federations: the same rounds as the package's, and the properties that the study counts on."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from federations import play, quadratics
from fedlga.core.optimizers.sgd import Sgd
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.keep import Keep
from fedlga.methods.fedavg import FedAvg
from fedlga.theory.theorems import Constants, Setting, apply_corollary

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from small_federation import Arm, Logistic, Problem, Quadratics, run, run_round

CENTRES = [(1.0, 0.0), (0.0, 2.0), (-3.0, 1.0)]
CURVATURES = [1.0, 0.5, 2.0]


class Known(Problem):
    """The quadratics of tests/support/federations.py, without noise."""

    name, start = "known", np.array([2.0, -1.0])

    def draw_gradient(self, w, devices, rng):
        return np.array(CURVATURES)[devices][..., None] * (w - np.array(CENTRES)[devices])

    def gradient(self, w):
        return np.mean([a * (w - np.array(c)) for a, c in zip(CURVATURES, CENTRES, strict=True)], axis=0)

    def constants(self):
        return Constants(2, 0, 1, 1)


@pytest.mark.parametrize(("arm", "policy"), [(Arm("complete"), Complete(scale="linear")), (Arm("keep", False), Keep())])
def test_a_round_is_the_packages(arm, policy):
    script = [[4, 3, 4], [2, 4, 4]]
    federation, state = quadratics(
        FedAvg(),
        centres=CENTRES,
        curvatures=CURVATURES,
        start=(2.0, -1.0),
        script=script,
        asked=4,
        lr=0.1,
        policy=policy,
        optimizer=Sgd(eta_g=1.5),
    )
    theirs, _ = play(federation, state, 2)
    s = Setting(N=3, K=None, E=4, T=2, rho=0.5, tau_max=3, eta_l=0.1, eta_g=1.5)
    w = Known().start[None]
    for steps in script:
        w, error2 = run_round(Known(), s, arm, w, np.arange(3)[None], np.array([steps]), np.random.default_rng(0))
        assert error2 is not None
    assert w[0] == pytest.approx(theirs.w.numpy(), abs=1e-5)


def test_the_quadratics_constants_are_what_they_say():
    problem, rng = Quadratics(8), np.random.default_rng(0)
    k, w = problem.constants(), rng.standard_normal(10)
    each = problem.curvature * (w - problem.centres)
    assert ((each - each.mean(0)) ** 2).sum(1).mean() == pytest.approx(k.sigma_g2) == pytest.approx(1)
    assert each.mean(0) == pytest.approx(problem.gradient(w))
    drawn = problem.draw_gradient(np.tile(w, (20000, 1, 1)), np.zeros((20000, 1), int), rng)[:, 0]
    assert ((drawn - each[0]) ** 2).sum(1).mean() == pytest.approx(k.sigma_l2, rel=0.05)
    assert 0.5 * (problem.curvature * problem.start**2).sum() == pytest.approx(k.gap)


def test_the_logistic_regressions_gradients_are_those_of_its_loss():
    problem, rng = Logistic(4), np.random.default_rng(0)
    w = rng.standard_normal(10)
    numeric = [(problem.value(w + h) - problem.value(w - h)) / 2e-5 for h in 1e-5 * np.eye(10)]
    assert problem.gradient(w[None])[0] == pytest.approx(np.array(numeric), abs=1e-6)
    assert problem.device_gradients(w).mean(0) == pytest.approx(problem.gradient(w[None])[0])
    drawn = problem.draw_gradient(np.tile(w, (20000, 1, 1)), np.full((20000, 1), 2), rng)[:, 0]
    assert drawn.mean(0) == pytest.approx(problem.device_gradients(w)[2], abs=0.03)
    assert np.abs(problem.gradient(problem.optimum()[None])).max() < 1e-10


def test_stragglers_of_a_run():
    """rho = 1 with E = 2: all do one step, and completing doubles it; keeping halves the speed."""
    s = Setting(N=3, K=None, E=2, T=1, rho=1.0, tau_max=2, eta_l=0.01, eta_g=1.0)
    s = apply_corollary(s, 2.0)
    start = (Known().gradient(Known().start[None]) ** 2).sum()
    for arm in (Arm("complete"), Arm("keep", False)):
        curves = run(Known(), s, arm, seeds=2)
        assert curves.squared_gradients.shape == (1, 2)
        assert curves.squared_gradients[0] == pytest.approx([start, start])
        assert curves.error2 > 0
