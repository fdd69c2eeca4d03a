"""Devices that are always slow and hold what others do not: their speeds, and what the model is worth to them."""

from __future__ import annotations

import pytest
import torch

import fedlga
from fedlga.data.partition import counts
from fedlga.evaluation import Evaluator, Exam
from fedlga.experiment import preset
from fedlga.fleet import speeds_by_class
from fedlga.settings import BadInput
from fedlga.simulation import make_fleet, simulate
from fedlga.types import Evaluation

ON_DIGITS = {"dataset": "digits", "devices": 20, "cohort": 5, "lr": 0.1, "backend": "serial", "rounds": 6}


def test_slowness_goes_with_classes():
    held = [[True, False, True], [False, True, False], [False, False, True]]
    assert speeds_by_class(held, [0], fast=1.0, slow=0.2) == [0.2, 1.0, 1.0]
    assert speeds_by_class(held, [1, 2], fast=1.0, slow=0.2) == [0.2, 0.2, 0.2]


def test_the_preset_makes_them_slow_every_round():
    experiment = preset("fleet").changed(ON_DIGITS)
    with simulate(experiment) as simulation:
        labels = simulation.devices.labels.numpy()
        table = counts(simulation.devices.parts, labels, 10)
        slow = {d for d in range(20) if table[d, :4].sum() > 0}
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
    from data_for_tests import tiny_cifar
    from fedlga.data.datasets import Data
    from fedlga.models import FlatModel

    small = tiny_cifar(train=4, test=8, classes=3)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    scores = torch.eye(3)[torch.tensor([0, 1, 1, 1, 1, 1, 2, 0])]  # class 0: 1 of 4 right, 1: all, 2: half
    data = Data(small.train_images, torch.tensor([0, 0, 1, 2]), small.test_images, labels, 3)

    class Fixed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.zeros(1))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return scores + self.w

    held = torch.tensor([[2, 0, 0], [0, 1, 1]])
    tests = Exam(FlatModel(Fixed()), data.test_images, data.test_labels)
    evaluator = Evaluator(tests.scored, data.test_labels, held, slow=[0])
    found = evaluator(torch.zeros(1))
    assert isinstance(found, Evaluation)
    assert found.accuracy == 4 / 8
    assert found.accuracy_slow == pytest.approx(0.25)
    assert found.accuracy_worst == pytest.approx(0.25)  # the other device finds (1 + 1/2) / 2 = 0.75
    assert Evaluator(tests.scored, data.test_labels, held, slow=[])(torch.zeros(1)).accuracy_slow is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slow_classes": [10]}, "slow_classes: got .10.; it takes classes from 0 to 9"),
        ({"slow_classes": [-1]}, "slow_classes: got .-1,.; it takes a list with each a whole number of at least 0"),
        ({"slow_speed": 0}, "slow_speed: got 0.0; it takes a number above 0"),
    ],
)
def test_bad_slowness(changes, said):
    with pytest.raises(BadInput, match=said):
        preset("fleet").changed(changes)


def test_who_is_slow_follows_from_the_partition():
    # Dealt iid, every device holds some of the slow classes, so every device is slow.
    experiment = preset("fleet").changed({**ON_DIGITS, "partition": "iid"})
    with simulate(experiment) as simulation:
        data = fedlga.simulation.load_data(experiment)
        fleet = make_fleet(experiment, data, list(simulation.devices.parts))
        assert len(fleet.always_slow()) == 20, "iid: everyone holds some of class 0"
