"""Buffers that training changes: averaged by weight as they are, or kept on each device with its BatchNorm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedlga import Experiment, Task, load_task, run
from fedlga.core.aggregator import Aggregator
from fedlga.core.optimizers.adaptive import Adam
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.drop import Drop
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, ServerState, Update
from fedlga.experiments.run import run_and_record
from fedlga.experiments.simulation import simulate
from fedlga.learning.examples import TensorExamples
from fedlga.learning.problem import fit_task
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.fednova import FedNova
from hard_experiment import OWN_TASKS, task_experiment


def contribution(device, steps, weight, buffers):
    delta = torch.full((4,), float(device + 1))
    update = Update(device, delta, 10, steps, 4, 0.5, {}, 0.1, 0.0, buffers=torch.tensor(buffers))
    return Contribution(update, weight=weight, share=0.5)


STATE = ServerState(round=0, w=torch.zeros(4), buffers=torch.tensor([0.0, 1.0]))
# Device 0 did all of its work and counts 3, device 1 a quarter of it and counts 1.
BOTH = [contribution(0, 4, 3.0, [2.0, 4.0]), contribution(1, 1, 1.0, [6.0, 8.0])]
MEAN = torch.tensor([(3 * 2.0 + 6.0) / 4, (3 * 4.0 + 8.0) / 4])  # whatever the method, completing or the optimiser do


@pytest.mark.parametrize("method", [FedAvg(), FedNova()])
@pytest.mark.parametrize("optimizer", [None, Adam()])
@pytest.mark.parametrize("audit", [False, True])
def test_statistics_are_the_weighted_mean_as_they_were_sent(method, optimizer, audit):
    aggregator = Aggregator(method, Complete(scale="linear"), **({} if optimizer is None else {"optimizer": optimizer}))
    result = aggregator.aggregate(STATE, iter(BOTH), audit=audit)
    assert torch.equal(result.state.buffers, MEAN)
    assert torch.equal(BOTH[1].update.buffers, torch.tensor([6.0, 8.0]))


def test_work_that_is_thrown_away_counts_for_nothing():
    result = Aggregator(FedAvg(), Drop()).aggregate(STATE, iter(BOTH))
    assert torch.equal(result.state.buffers, torch.tensor([2.0, 4.0]))
    nothing = Aggregator(FedAvg(), Drop()).aggregate(STATE, iter(BOTH[1:]))
    assert torch.equal(nothing.state.buffers, STATE.buffers)


def test_counters_begin_anew_and_statistics_travel():
    """BatchNorm of one number, momentum 0.1: 0.9 * sent + 0.1 * the batch's own."""
    x = torch.tensor([[1.0], [3.0], [5.0], [7.0]])
    task = Task(lambda: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)), None)
    model = fit_task(task, TensorExamples(x, x[:, 0].clone()), seed=0).model
    assert torch.equal(model.read_buffers(), torch.tensor([0.0, 1.0]))  # mean, variance; the counter is not sent
    for _ in range(2):
        model.load(model.vector.clone(), torch.tensor([10.0, 2.0]))
        model.module(x)
        # mean 4, variance of four numbers with n - 1: (9 + 1 + 1 + 9) / 3
        torch.testing.assert_close(model.read_buffers(), torch.tensor([0.9 * 10 + 0.1 * 4, 0.9 * 2 + 0.1 * 20 / 3]))
        assert int(model.module[0].num_batches_tracked) == 1
    assert [piece.stop - piece.start for piece in model.batch_norm_pieces()] == [1, 1]


def test_a_device_with_its_own_batch_norm_sends_nothing_of_it():
    experiment = task_experiment("regression", "fedavg").changed({"batch_norm": "device", "rounds": 2})
    with simulate(experiment) as simulation:
        norm = torch.zeros(len(simulation.start.w), dtype=torch.bool)
        for piece in simulation.model.batch_norm_pieces():
            norm[piece] = True
        (state, record), (last, _) = run_rounds(simulation.federation, simulation.start, 2)
        memories = dict(simulation.federation.backend.memories())
        # Scored with what each device keeps: recompute the joint metric by hand.
        test, ranges = simulation.split.test, simulation.split.ranges
        errors = []
        for device, (start, end) in enumerate(ranges):
            own = simulation.devices.personalise(last.w, last.buffers, memories.get(device, {}))
            simulation.model.load(*own)
            simulation.model.module.eval()
            inputs, targets = test.piece(start, end)
            errors.append((simulation.model.module(inputs)[:, 0] - targets).abs().detach())
        simulation.model.module.train()
    for w in (state.w, last.w):
        assert torch.equal(w[norm], simulation.start.w[norm])
        assert not torch.equal(w[~norm], simulation.start.w[~norm])
    assert torch.equal(last.buffers, simulation.start.buffers)
    trained = [m for m in memories.values() if not torch.equal(m["own.weights"], simulation.start.w[norm])]
    assert trained
    assert record.mae is not None
    by_device = [float(e.mean()) for e in errors]
    mae = float(torch.cat(errors).mean())
    measured = list(run_rounds_again(experiment))[-1]
    assert measured["mae"] == pytest.approx(mae, rel=1e-5)
    assert measured["mae_worst"] == pytest.approx(max(by_device), rel=1e-5)


def run_rounds_again(experiment):
    with simulate(experiment) as simulation:
        for _, record in run_rounds(simulation.federation, simulation.start, experiment.rounds):
            yield record.metrics


@pytest.mark.parametrize("mode", ["average", "device"])
def test_a_run_that_was_stopped_continues_to_the_same_weights(mode, tmp_path):
    experiment = task_experiment("regression", "feddyn").changed({"batch_norm": mode, "rounds": 4})
    whole = run(experiment, tmp_path / "whole")
    for _ in run_and_record(experiment, tmp_path / "parts"):
        if _.round == 2:
            break
    resumed = list(run_and_record(experiment, tmp_path / "parts", resume=True))
    assert [r.round for r in resumed] == [3, 4]
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert files[0] == files[1]
    assert [r.metrics for r in resumed] == [r.metrics for r in whole.records[2:]]


def test_what_cannot_be_is_one_line():
    with pytest.raises(BadInput, match="batch_norm: got 'device', and the model has no BatchNorm"):
        run_once(Task(lambda: nn.Linear(2, 1), (np.zeros((40, 2)), np.zeros(40))))
    with_tests = {"train": (np.ones((40, 2)), np.ones(40)), "test": (np.ones((4, 2)), np.ones(4))}
    norm = Task(lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), with_tests)
    with pytest.raises(BadInput, match="batch_norm: got 'device', and the test data belongs to no device"):
        run_once(norm)
    with pytest.raises(BadInput, match="batch_norm: got 'device' with backend 'flower'"):
        Experiment(task=OWN_TASKS["regression"], batch_norm="device", backend="flower")


def run_once(task):
    from fedlga import rounds

    return list(rounds(Experiment(rounds=1, backend="serial", batch_norm="device"), task=task))


def test_a_last_batch_of_one_is_left_out_where_batch_norm_cannot_take_it():
    """Nine examples in batches of four: the ninth has no partner."""
    task = load_task(OWN_TASKS["regression"])
    x = np.random.default_rng(0).normal(size=(90, 3))
    experiment = Experiment(rounds=2, backend="serial", batch_size=4, devices=8, fleet="equal")
    from fedlga import rounds

    own = Task(task.model, (x, x[:, 0].copy()))  # 11 or 12 a device, of which two are held out
    assert all(record.rmse is not None for record in rounds(experiment, task=own))
