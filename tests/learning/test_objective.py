"""What a federation minimises: values, gradients and Hessians of quadratics, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from federations import Quadratic
from fedlga.learning import objective
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.objective import Objective
from fedlga.learning.training import Devices, TrainingOptions
from fedlga.methods.fedavg import FedAvg

# a/2 |w - b|^2, as rows of a, b_1, b_2
ROWS = torch.tensor([[2.0, 1, 0], [4.0, 0, 1], [1.0, -1, 3]])
START = (3.0, 1.0)


def mean(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs.mean()


def make_devices(**options) -> Devices:
    model = FlatModel(Quadratic(START), mean)
    examples = TensorExamples(ROWS, torch.zeros(3))
    return Devices(FedAvg(), model, examples, [np.array([0, 1]), np.array([2])], TrainingOptions(1, **options))


def test_value_and_gradient_by_hand(monkeypatch):
    devices = make_devices()
    w = torch.tensor(START)
    # Rows at (3, 1): 2/2 (4 + 1) = 5, 4/2 (9 + 0) = 18, 1/2 (16 + 4) = 10. F_1 = 11.5, F_2 = 10.
    # Gradients (4, 2), (12, 0), (4, -2): grad F_1 = (8, 1), grad F_2 = (4, -2).
    value, squared = Objective.of(devices).measure(w)
    assert value == pytest.approx(10.75)
    assert squared == pytest.approx(6**2 + 0.5**2)
    assert Objective.of(devices).measure_loss(w) == (pytest.approx(10.75), None)
    value, squared = Objective.of(devices, by_examples=True).measure(w)
    assert value == pytest.approx((2 * 11.5 + 10) / 3)
    assert squared == pytest.approx((20 / 3) ** 2)  # ((16 + 4) / 3, (2 - 2) / 3)
    monkeypatch.setattr(objective, "CHUNK", 1)
    assert Objective.of(devices).measure(w)[1] == pytest.approx(36.25)


def test_weight_decay_is_part_of_what_is_minimised():
    devices = make_devices(weight_decay=0.1)
    w = torch.tensor(START)
    value, squared = Objective.of(devices).measure(w)
    assert value == pytest.approx(10.75 + 0.05 * 10)
    assert Objective.of(devices).measure_loss(w)[0] == pytest.approx(value)
    assert squared == pytest.approx(6.3**2 + (-0.5 + 0.1) ** 2)
    assert Objective.of(make_devices(weight_decay=0.1, optimizer="adamw")).decay == 0  # its decay is not of the loss
    full = Objective.of(devices)
    with full.at(w):
        assert torch.allclose(
            full.multiply_hessian(np.array([0, 1]), torch.tensor([1.0, 2.0])), torch.tensor([3.1, 6.2])
        )


def test_hessian_of_a_network_against_torch():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2))
    model = FlatModel(module)
    images, labels = torch.randn(6, 1, 4, 4), torch.tensor([0, 1, 1, 0, 1, 0])
    whole = Objective(model, TensorExamples(images, labels), [np.arange(6)], [1.0])

    def loss(vector: torch.Tensor) -> torch.Tensor:
        pieces, start = {}, 0
        for name, p in module.named_parameters():
            flat = vector[start : start + p.numel()]
            pieces[name] = flat.view(3, 3, 3, 1).permute(0, 3, 1, 2) if p.dim() == 4 else flat.view_as(p)
            start += p.numel()
        return nn.functional.cross_entropy(torch.func.functional_call(module, pieces, images), labels)

    w = model.vector.clone()
    exact = torch.autograd.functional.hessian(loss, w)
    direction = torch.randn(len(w))
    with whole.at(w):
        assert torch.allclose(whole.multiply_hessian(np.arange(6), direction), exact @ direction, atol=1e-5)


def test_a_loss_without_curvature():
    model = FlatModel(nn.Linear(2, 1, bias=False), mean)
    whole = Objective(model, TensorExamples(torch.ones(3, 2), torch.zeros(3)), [np.arange(3)], [1.0])
    with whole.at(model.vector.clone()):
        assert torch.equal(whole.multiply_hessian(np.arange(3), torch.ones(2)), torch.zeros(2))


def test_dropout_is_off_and_the_model_trains_again_after_it():
    model = FlatModel(nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)).train())
    whole = Objective(model, TensorExamples(torch.randn(9, 4), torch.zeros(9, dtype=torch.long)), [np.arange(9)], [1.0])
    w = model.vector.clone()
    assert whole.measure(w) == whole.measure(w)
    assert model.module.training
