"""The joint model tested on the devices' own data: the figures of a simulation, and no belief in absurd ones."""

from __future__ import annotations

import math

import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict

from fedlga.backends.flower.device_tests import find_unbelievable, unpack_sums
from fedlga.backends.flower.messages import NUMBERS, Refused
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.experiments.flower_client import client_app
from fedlga.experiments.flower_server import open_own_federation
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.learning.metrics import BUILT_IN
from fedlga.learning.task import Task
from grids import InProcessGrid
from hard_experiment import OWN_TASKS, run_in_memory, task_experiment

pytestmark = pytest.mark.slow

SETTINGS = {
    "devices": 4,
    "cohort": 4,
    "partition": "iid",
    "rounds": 2,
    "evaluate_on": "devices",
    "averaging": "uniform",
}


def play(experiment, grid):
    with simulate(experiment, grid=grid) as simulation:
        return [record for _, record in run_rounds(simulation.federation, simulation.start, experiment.rounds)]


def test_nodes_measure_what_a_simulation_measures(tmp_path):
    """Every device holds out a fifth of its own; the sums are the same, up to the order in which they are added."""
    experiment = task_experiment("regression", "fedavg").changed(SETTINGS)
    _, _, expected = run_in_memory(experiment.changed({"backend": "serial"}))
    module = OWN_TASKS["regression"]
    app = client_app(task=module)
    records = play(experiment.changed({"backend": "flower"}), InProcessGrid(4, tmp_path, app))
    for record, other in zip(records, expected, strict=True):
        assert list(record.metrics) == list(other.metrics)
        for name, value in other.metrics.items():
            if name.startswith("r2"):  # it needs all outputs at once, and these do not leave a device
                assert record.metrics[name] is None
                continue
            if name.endswith("_slow"):  # nodes: whose last update was unfinished; a simulation: who never finishes
                assert value is None
                assert record.metrics[name] > 0
                continue
            assert record.metrics[name] == pytest.approx(value, rel=1e-5)
        assert record.note is None
    assert all(record.metrics[f"{name}_worst"] is not None for record in records for name in ("mae",))


def points(node):
    """Ten points of each device, all of class 0 on device 0 and of class 1 on the others."""
    generator = torch.Generator().manual_seed(int(node["device"]))
    label = 0 if node["device"] == 0 else 1
    return torch.randn(10, 3, generator=generator), torch.full((10,), label)


def model():
    """Return a model that always says class 1, and hardly learns."""
    linear = torch.nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.zero_()
        linear.bias.copy_(torch.tensor([0.0, 5.0]))
    return linear


def play_own(tmp_path, tampers=None, devices=4, slow=None, **changes):
    """Run real devices that have their own data; return the records."""
    settings = {"dataset": "own", "model": "own", "fleet": "real", "backend": "flower", "method": "fedavg"}
    settings |= {"devices": devices, "cohort": devices, "rounds": 1, "deadline": 60.0, "lr": 1e-6, "epochs": 1}
    settings |= {"steps_per_epoch": 2, "evaluate_on": "devices", "metric": "accuracy", **changes}
    experiment = preset("digits").changed(settings)
    grid = InProcessGrid(devices, tmp_path, client_app(model, points))
    grid.tamper_with_tests = tampers or {}
    grid.configs = slow or {}
    test = Task(model, lambda: points({"device": 1}))
    with open_own_federation(experiment, grid, test, only_tests=True) as simulation:
        return [record for _, record in run_rounds(simulation.federation, simulation.start, experiment.rounds)]


def test_the_mean_and_the_worst_by_hand(tmp_path):
    """Each of four devices holds out two of its ten points. The model is wrong on device 0 alone: 6 of 8 are right."""
    [record] = play_own(tmp_path)
    assert record.accuracy == 0.75
    assert record.accuracy_worst == 0.0
    assert record.accuracy_slow is None
    assert record.note is None
    # Of eight, two cost log(1 + e^5) and six log(1 + e^-5).
    assert record.loss == pytest.approx((2 * math.log1p(math.exp(5)) + 6 * math.log1p(math.exp(-5))) / 8, rel=1e-4)


def lie(**changes):
    def tamper(asked, reply):
        numbers = dict(reply.content[NUMBERS])
        for name, value in changes.items():
            numbers |= {key: value for key in numbers if key.endswith(name)}
        return Message(RecordDict({NUMBERS: MetricRecord(numbers)}), reply_to=asked)

    return tamper


LIES = {
    "not a number": (lie(sum=math.nan), "its evaluation says accuracy sum nan"),
    "all weight": (lie(weight=float(2**40)), "its evaluation claims a weight of"),
    "too good": (lie(sum=1e30), "its evaluation says accuracy 5e+29"),
    "minus": (lie(weight=-1.0), "its evaluation says accuracy"),
    "another device": (lie(device=0), "its evaluation is of device 0"),
    "another form": (
        lambda asked, reply: Message(RecordDict({NUMBERS: MetricRecord({"x": 1})}), reply_to=asked),
        "its evaluation does not have the agreed form",
    ),
}


@pytest.mark.parametrize("what", LIES)
def test_a_device_that_lies_absurdly_is_left_out(what, tmp_path):
    """Without device 3, four of six are right."""
    tamper, reason = LIES[what]
    [record] = play_own(tmp_path, {3: tamper})
    assert record.accuracy == pytest.approx(4 / 6)
    assert reason in record.refused[3]
    assert record.note == "3 of 4 devices tested the model"
    assert 3 in record.used  # its update was a good one


def test_slow_devices_are_those_that_did_not_finish(tmp_path):
    """Device 0, on which the model is always wrong, takes longer than its deadline."""
    slow = {0: {"seconds-per-step": 0.3}}
    [record] = play_own(tmp_path, slow=slow, deadline=0.5, grace=60.0, stragglers="keep")
    assert record.slow == [0]
    assert (record.accuracy_slow, record.accuracy_worst, record.accuracy) == (0.0, 0.0, 0.75)


def test_in_a_simulation_test_data_of_nobody_is_refused():
    with (
        pytest.raises(BadInput, match=r"evaluate_on: .* belongs to no device"),
        simulate(preset("digits").changed({"evaluate_on": "devices", "backend": "serial"})),
    ):
        pass


def test_what_is_far_from_the_others_is_not_believed():
    measured = {d: {"loss": (2.0, 1.0)} for d in range(4)} | {4: {"loss": (3e6, 1.0)}, 5: {"loss": (2.0, 101.0)}}
    assert find_unbelievable(measured).keys() == {4, 5}
    assert find_unbelievable({0: {"loss": (1.0, 1.0)}, 1: {"loss": (1e9, 1.0)}}) == {}  # who of two lies?


def test_a_negative_square_is_refused():
    numbers = MetricRecord({"device": 0, "examples": 2, "rmse sum": -1.0, "rmse weight": 2.0,
                            "loss sum": 1.0, "loss weight": 2.0})  # fmt: skip
    with pytest.raises(Refused, match=r"rmse -0\.5"):
        unpack_sums(RecordDict({NUMBERS: numbers}), 0, [BUILT_IN["rmse"]])
