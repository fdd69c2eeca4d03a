"""Server optimisers, two steps each, with numbers derived by hand from their papers' formulas."""

from __future__ import annotations

import math

import pytest
import torch

from fedlga.core.optimizers.adaptive import Adagrad, Adam, Yogi
from fedlga.core.optimizers.momentum import Momentum
from fedlga.core.optimizers.sgd import Sgd
from fedlga.core.registry import names_of
from fedlga.core.round import run_rounds
from fedlga.experiments.presets import preset
from fedlga.experiments.run import run, run_and_record
from fedlga.experiments.simulation import simulate


def walk(optimizer, *directions: float) -> list[float]:
    """The weight after each step, from 1, one parameter."""
    w, memory, places = torch.tensor([1.0]), {}, []
    for direction in directions:
        w, changed = optimizer.step(w, [torch.tensor([direction])], memory)
        memory = {**memory, **changed}
        places.append(float(w))
    return places


def test_sgd_steps_by_eta_g_times_the_direction():
    # 1 + 2 * 3 = 7; 7 + 2 * (-1) = 5
    assert walk(Sgd(eta_g=2.0), 3.0, -1.0) == [7.0, 5.0]


def test_momentum_is_fedavgm():
    # v = 2, w = 1 + 2 = 3; v = 0.5 * 2 + 1 = 2, w = 5. With eta_g 0.1: 1.2, 1.4.
    assert walk(Momentum(beta=0.5), 2.0, 1.0) == [3.0, 5.0]
    assert walk(Momentum(beta=0.5, eta_g=0.1), 2.0, 1.0) == pytest.approx([1.2, 1.4])


def test_adagrad_is_algorithm_2():
    # tau = 1, v_0 = 1 + 4 = 5, m = 2: w = 1 + 0.5 * 2 / (sqrt(5) + 1); v_1 = 5 + 9 = 14, m = -3.
    first = 1 + 0.5 * 2 / (math.sqrt(5) + 1)
    second = first - 0.5 * 3 / (math.sqrt(14) + 1)
    assert walk(Adagrad(eta_g=0.5, tau=1.0), 2.0, -3.0) == pytest.approx([first, second])


def test_adam_is_algorithm_2_without_bias_correction():
    # beta_1 = 0.5, beta_2 = 0.75, tau = 1: m = 1, v = 0.75 * 1 + 0.25 * 4 = 1.75;
    # then m = 0.5 - 1.5 = -1, v = 0.75 * 1.75 + 0.25 * 9 = 3.5625.
    first = 1 + 0.5 * 1 / (math.sqrt(1.75) + 1)
    second = first - 0.5 * 1 / (math.sqrt(3.5625) + 1)
    assert walk(Adam(eta_g=0.5, beta_1=0.5, beta_2=0.75, tau=1.0), 2.0, -3.0) == pytest.approx([first, second])


def test_yogi_is_algorithm_2():
    # v = 1 - 0.25 * 4 * sign(1 - 4) = 2; then v = 2 - 0.25 * 0.25 * sign(2 - 0.25) = 1.9375. m = 1, then 0.5 + 0.25.
    first = 1 + 0.5 * 1 / (math.sqrt(2) + 1)
    second = first + 0.5 * 0.75 / (math.sqrt(1.9375) + 1)
    assert walk(Yogi(eta_g=0.5, beta_1=0.5, beta_2=0.75, tau=1.0), 2.0, 0.5) == pytest.approx([first, second])


def test_sgd_adds_the_terms_one_after_the_other():
    """FedDyn's bits depend on it: (w + mean) + (-drift / alpha), not w + (mean - drift / alpha)."""
    w, terms = torch.tensor([1.0]), [torch.tensor([1e-8]), torch.tensor([-1.0])]
    assert float(Sgd().step(w, terms, {})[0]) == 0.0
    assert float(w + (torch.tensor([1e-8]) + torch.tensor([-1.0]))) == 0.0
    big = [torch.tensor([1e8]), torch.tensor([-1e8])]
    assert float(Sgd().step(w, big, {})[0]) == 0.0  # 1 is lost in 1e8 + 1; in the sum of the terms first it is not
    assert float(w + torch.tensor([0.0])) == 1.0


@pytest.mark.parametrize("name", names_of("optimizer"))
@pytest.mark.parametrize("method", names_of("method"))
def test_every_optimizer_goes_with_every_method(name, method):
    experiment = preset("digits").changed(
        {"method": method, "server_optimizer": name, "rounds": 2, "steps_per_epoch": 1}
    )
    with simulate(experiment) as simulation:
        states = [state for state, _ in run_rounds(simulation.federation, simulation.start, 2)]
    assert torch.isfinite(states[-1].w).all()
    assert not torch.equal(states[-1].w, simulation.start.w)


@pytest.mark.parametrize("name", ["momentum", "yogi"])
def test_a_resumed_run_keeps_what_the_optimizer_remembers(name, tmp_path):
    changes = {"server_optimizer": name, "rounds": 6, "steps_per_epoch": 1, "method": "feddyn"}
    experiment = preset("digits").changed(changes)
    whole = run(experiment, tmp_path / "whole")
    stopped = run_and_record(experiment, tmp_path / "stopped")
    for _ in range(3):
        next(stopped)
    stopped.close()
    list(run_and_record(experiment, tmp_path / "stopped", resume=True))
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("whole", "stopped")]
    assert weights[0] == weights[1]
    assert len(whole.records) == 6


def test_adaptive_steps_differ_from_plain_ones():
    finals = {
        name: run_once(preset("digits").changed({"server_optimizer": name, "rounds": 2, "steps_per_epoch": 1}))
        for name in names_of("optimizer")
    }
    assert len({tuple(w.tolist()) for w in finals.values()}) == len(finals)


def run_once(experiment) -> torch.Tensor:
    with simulate(experiment) as simulation:
        return [state for state, _ in run_rounds(simulation.federation, simulation.start, experiment.rounds)][-1].w
