"""The presets; and the fleet of one of them, whose slow devices are always slow and hold what others do not."""

from __future__ import annotations

import pytest
import torch

import fedlga
from fedlga.core.fleet import Workload
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import PRESET_MEANINGS, PRESETS, preset
from fedlga.experiments.simulation import make_fleet, simulate
from fedlga.fleets.speeds import SpeedFleet
from fedlga.learning.evaluation import Evaluator, TestSet
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.metrics import BUILT_IN
from fedlga.learning.partitions.base import count_classes
from fedlga.learning.problem import Problem

ON_DIGITS = {"dataset": "digits", "devices": 20, "cohort": 5, "lr": 0.1, "backend": "serial", "rounds": 6}


def test_the_presets():
    assert (
        PRESETS.keys()
        == PRESET_MEANINGS.keys()
        == {
            *("paper", "paper-epochs", "fleet", "phones", "digits", "shakespeare"),
            *("cifar10", "cifar10-batches", "cifar100", "cifar100-batches"),
        }
    )
    paper = preset("paper")
    assert paper == Experiment()
    facts = (paper.devices, paper.cohort, paper.epochs, paper.batch_size)
    assert facts == (50, 10, 5, 10)
    assert (paper.settings("fleet")["rho"], paper.settings("partition")["classes_per_device"]) == (0.5, 2)
    assert (paper.target, preset("cifar10").target, preset("cifar100").target) == (0.65, 0.55, 0.40)
    assert preset("cifar100").settings("partition")["classes_per_device"] == 20
    assert preset("cifar10").model == preset("cifar100").model == "resnet20"


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_whole_experiment(name):
    experiment = preset(name)
    assert Experiment.from_toml(experiment.resolved().to_toml()) == experiment.resolved()


def test_an_unknown_preset_is_one_line():
    with pytest.raises(BadInput, match=r"preset: there is no 'papr'; did you mean 'paper'\?"):
        preset("papr")


def test_slowness_goes_with_classes():
    held = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 0, 1]]).numpy()
    workload = Workload(seed=0, steps=[5, 5, 5], epochs=5, deadline=5.0, held=held)
    assert SpeedFleet(workload, slow_classes=(0,), slow_speed=0.2).speed_of == [0.2, 1.0, 1.0]
    assert SpeedFleet(workload, slow_classes=(1, 2), slow_speed=0.2).speed_of == [0.2, 0.2, 0.2]


def test_the_preset_makes_them_slow_every_round():
    experiment = preset("fleet").changed(ON_DIGITS)
    with simulate(experiment) as simulation:
        assert simulation.devices is not None
        labels = simulation.devices.examples.targets().numpy()
        table = count_classes(simulation.devices.parts, labels, 10)
        slow = {d for d in range(20) if table[d, :4].sum() > 0}
        assert 0 < len(slow) < 20
        for round in range(5):
            for effort in simulation.federation.fleet.draw(round, range(20)):
                assert effort.steps == (1 if effort.device in slow else 5)
                assert effort.slow == (effort.device in slow)
    records = list(fedlga.rounds(experiment))
    evaluated = [r for r in records if r.accuracy is not None]
    assert [r.round for r in evaluated] == [3, 6]
    assert all(r.accuracy_slow is not None and r.accuracy_worst is not None for r in evaluated)


def test_the_evaluation_by_hand():
    """Two devices: one holds class 0 alone (and is slow), the other classes 1 and 2 in equal parts."""
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    outputs = torch.eye(3)[torch.tensor([0, 1, 1, 1, 1, 1, 2, 0])]  # class 0: 1 of 4 right, 1: all, 2: half
    examples = TensorExamples(torch.zeros(8, 3, 32, 32), labels)

    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return outputs + self.w

    held = torch.tensor([[2, 0, 0], [0, 1, 1]])
    model, metrics = FlatModel(Fixed()), [BUILT_IN["accuracy"]]
    scores = TestSet(Problem(model, model.criterion, metrics, 3, (3,)), examples).score(torch.zeros(1))
    found = Evaluator(metrics, examples, [0], held=held).evaluate(scores)
    assert found["accuracy"] == 4 / 8
    assert found["accuracy_slow"] == pytest.approx(0.25)
    assert found["accuracy_worst"] == pytest.approx(0.25)  # the other device finds (1 + 1/2) / 2 = 0.75
    assert Evaluator(metrics, examples, [], held=held).evaluate(scores)["accuracy_slow"] is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slow_classes": [10]}, "slow_classes: got .10.; it takes classes from 0 to 9"),
        ({"slow_classes": [-1]}, "slow_classes: got .-1,.; it takes a list with each a whole number of at least 0"),
        ({"slow_speed": 0}, "slow_speed: got 0.0; it takes a number above 0"),
    ],
)
def test_bad_slowness(changes, message):
    with pytest.raises(BadInput, match=message):
        preset("fleet").changed(changes)


def test_who_is_slow_follows_from_the_partition():
    # Dealt iid, every device holds some of the slow classes, so every device is slow.
    experiment = preset("fleet").changed({**ON_DIGITS, "partition": "iid"})
    with simulate(experiment) as simulation:
        assert simulation.split is not None
        fleet = make_fleet(experiment, simulation.split, simulation.model)
        assert len(fleet.always_slow()) == 20, "iid: everyone holds some of class 0"
