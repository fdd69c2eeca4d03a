"""The round: who is selected, when a run ends, and what it leaves as it found it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import final

import pytest
import torch

import fedlga
from federations import close, play, quadratics
from fedlga.core.aggregation.mean import Mean
from fedlga.core.method import Direction, Method
from fedlga.core.registry import create
from fedlga.core.round import run_rounds
from fedlga.core.schedules.base import select_devices
from fedlga.core.settings import BadInput
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.methods.fedavg import FedAvg

TWO_DEVICES = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 1]], "asked": 1, "lr": 0.5}


def test_a_device_drawn_twice_works_once_and_counts_twice():
    federation, state = quadratics(create("method", "fedavg"), **TWO_DEVICES, cohort=3, replacement=True)
    for round in range(8):
        times = select_devices(federation, round, range(2), 3)
        assert sum(times.values()) == 3
        after, (record,) = play(federation, replace(state, round=round), 1)
        assert sorted(record.devices) == sorted(times)
        close(after.w, [2 * times[0] / 3, 2 * times[1] / 3])
    assert any(len(select_devices(federation, round, range(2), 3)) == 2 for round in range(8))


def test_a_run_ends_in_the_round_in_which_it_diverges():
    # Every step multiplies the distance to the centre by 1 - 1e30: the second round overflows float32.
    federation, state = quadratics(FedAvg(), **{**TWO_DEVICES, "lr": 1e30})
    federation = replace(federation, aggregator=replace(federation.aggregator, rule=Mean(outlier_bound=0)))
    records = [record for _, record in run_rounds(federation, state, 10)]
    assert [r.diverged for r in records] == [False, True]
    assert records[-1].note == "no update holds finite numbers any more: the run stops here"
    assert records[-1].accuracy is not None, "the last round is always evaluated"


def test_weights_are_evaluated_when_due_and_after_the_last_round():
    federation, state = quadratics(FedAvg(), **TWO_DEVICES, evaluate_every=2)
    _, records = play(federation, state, 5)
    assert [r.accuracy is not None for r in records] == [False, True, False, True, True]


def test_the_rate_decays_each_round():
    federation, state = quadratics(FedAvg(), **TWO_DEVICES, lr_decay=0.5)
    _, records = play(federation, state, 3)
    assert [r.lr for r in records] == [0.5, 0.25, 0.125]


@pytest.fixture
def three_threads():
    """Let the caller use three threads of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@final
@dataclass(frozen=True)
class ThreadCounter(Method):
    """FedAvg that notes how many threads torch has on the device and at the aggregator."""

    counts: list[int] = field(default_factory=list)

    def local(self, assignment, memory):
        self.counts.append(torch.get_num_threads())
        return super().local(assignment, memory)

    def direction(self, state, sums, contributions):
        self.counts.append(torch.get_num_threads())
        return Direction([sums["delta"].mean()])


@pytest.mark.usefixtures("three_threads")
def test_a_round_uses_one_thread_and_the_callers_loop_what_it_had():
    method = ThreadCounter()
    federation, state = quadratics(method, **TWO_DEVICES)
    in_loop = [torch.get_num_threads() for _ in run_rounds(federation, state, 4)]
    assert method.counts == [1, 1, 1] * 4  # two devices and the aggregator in each round
    assert in_loop == [3] * 4
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_threads_that_the_caller_changes_between_rounds_stay_changed():
    federation, state = quadratics(FedAvg(), **TWO_DEVICES)
    counts = []
    for number, _ in enumerate(run_rounds(federation, state, 3)):
        counts.append(torch.get_num_threads())
        torch.set_num_threads(2 + number)
    assert counts == [3, 2, 3]
    assert torch.get_num_threads() == 4


@pytest.mark.slow
@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_fedlga_rounds_leaves_torchs_threads_alone(backend):
    experiment = preset("digits").changed({"rounds": 3, "steps_per_epoch": 1, "backend": backend, "workers": 1})
    in_loop = [torch.get_num_threads() for _ in fedlga.rounds(experiment)]
    assert in_loop == [3] * 3
    assert torch.get_num_threads() == 3
    for _ in fedlga.rounds(experiment):
        break  # a caller that has seen enough
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_round_that_fails_gives_the_threads_back():
    experiment = preset("digits").changed({"model": "models_for_tests:fails_in_training", "rounds": 1})
    with simulate(experiment) as simulation, pytest.raises(BadInput, match="does not want to be trained"):
        list(run_rounds(simulation.federation, simulation.start, 1))
    assert torch.get_num_threads() == 3
