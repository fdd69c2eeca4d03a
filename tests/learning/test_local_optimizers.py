"""Optimisers on the device give what torch's own give, on the same batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedlga import Experiment, Task
from fedlga.core.registry import names_of
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment
from fedlga.learning.examples import TensorExamples
from fedlga.learning.problem import fit_task
from fedlga.learning.training import Devices, TrainingOptions
from fedlga.methods.fedavg import FedAvg

STEPS, LR = 7, 0.05


def make_devices(options, model=None):
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    examples = TensorExamples(x, y)
    make = model or (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
    problem = fit_task(Task(make, None), examples, seed=0, label_smoothing=options.label_smoothing)
    return Devices(FedAvg(), problem.model, examples, [np.arange(40)], options)


def make_assignment(devices, momentum=0.0):
    w = devices.model.vector.clone()
    return Assignment(3, 0, w, STEPS, STEPS, LR, momentum, 0, {}, buffers=devices.model.read_buffers())


def train_with_torch(devices, assignment, make_optimizer, smoothing=0.0):
    """Return how far torch's own optimiser moves the weights on the batches of the assignment."""
    devices.model.load(assignment.w)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    module.load_state_dict({name: value.clone() for name, value in devices.model.module.state_dict().items()})
    before = torch.cat([p.detach().reshape(-1).clone() for p in module.parameters()])
    optimizer = make_optimizer(module.parameters())
    for x, y in devices.batches(assignment):
        optimizer.zero_grad()
        cross_entropy(module(x), y, label_smoothing=smoothing).backward()
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()]) - before


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.8])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_sgd_is_torchs(momentum, decay, fast):
    devices = make_devices(TrainingOptions(batch_size=9, weight_decay=decay, fast=fast))
    assignment = make_assignment(devices, momentum)
    expected = train_with_torch(
        devices, assignment, lambda p: torch.optim.SGD(p, LR, momentum=momentum, weight_decay=decay)
    )
    torch.testing.assert_close(devices.perform(assignment, {})[0].delta, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adamw_is_torchs_and_remembers_nothing(decay):
    devices = make_devices(TrainingOptions(batch_size=9, optimizer="adamw", weight_decay=decay))
    assignment = make_assignment(devices)
    expected = train_with_torch(devices, assignment, lambda p: torch.optim.AdamW(p, LR, weight_decay=decay))
    first, _ = devices.perform(assignment, {})
    torch.testing.assert_close(first.delta, expected, rtol=1e-4, atol=1e-6)
    second, _ = devices.perform(assignment, {})
    assert torch.equal(first.delta, second.delta)


def test_labels_are_smoothed_in_training_only():
    devices = make_devices(TrainingOptions(batch_size=9, label_smoothing=0.2))
    assignment = make_assignment(devices)
    expected = train_with_torch(devices, assignment, lambda p: torch.optim.SGD(p, LR), smoothing=0.2)
    torch.testing.assert_close(devices.perform(assignment, {})[0].delta, expected, rtol=1e-4, atol=1e-6)
    plain = fit_task(Task(lambda: nn.Linear(6, 3), None), devices.examples, 0, label_smoothing=0.2)
    assert plain.loss is cross_entropy
    assert plain.model.criterion is not cross_entropy


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_trains_on_a_rounded_copy_of_float32_weights(dtype):
    """One step of one layer by hand: w - lr * gradient at round(w), where w itself is not rounded."""
    x, y = torch.ones(4, 2, dtype=dtype), torch.tensor([0.1, 0.1, 0.1, 0.1])
    examples = TensorExamples(x, y)
    problem = fit_task(Task(lambda: nn.Linear(2, 1, bias=False).to(dtype), None), examples, seed=0)
    devices = Devices(FedAvg(), problem.model, examples, [np.arange(4)], TrainingOptions(batch_size=4))
    w = torch.tensor([0.3, 0.20001])  # float32 numbers that neither format holds
    update, _ = devices.perform(Assignment(0, 0, w, 1, 1, 0.5, 0.0, 0, {}), {})
    output = w.to(dtype).float().sum().to(dtype).float()
    gradient = (2 * (output - 0.1)).to(dtype).float()  # of (output - y)^2 by each weight: its input is 1
    torch.testing.assert_close(update.delta, -0.5 * gradient.expand(2), rtol=2e-2, atol=1e-4)
    assert update.delta.dtype == torch.float32
    assert problem.model.parameters[0].dtype == dtype
    assert torch.equal(problem.model.parameters[0].detach()[0].float(), problem.model.vector.to(dtype).float())


def test_frozen_parameters_stay_and_are_not_sent():
    def make():
        module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        module[0].requires_grad_(False)
        return module

    devices = make_devices(TrainingOptions(batch_size=9), make)
    before = devices.model.module[0].weight.clone()
    update, _ = devices.perform(make_assignment(devices), {})
    assert len(update.delta) == 5 * 3 + 3
    assert torch.equal(devices.model.module[0].weight, before)


@pytest.mark.parametrize("method", names_of("method"))
def test_methods_that_divide_by_sgds_steps_refuse_adamw(method):
    settings = {"method": method, "local_optimizer": "adamw"}
    if method in ("fednova", "scaffold"):
        with pytest.raises(BadInput, match=f"local_optimizer: got 'adamw'; method {method} takes sgd: "):
            Experiment(**settings)
    else:
        assert Experiment(**settings).local_optimizer == "adamw"


def test_what_does_not_go_with_adamw_is_refused():
    with pytest.raises(BadInput, match=r"momentum: got 0.5 with local_optimizer 'adamw'; it goes with sgd"):
        Experiment(local_optimizer="adamw", momentum=0.5)
    with pytest.raises(BadInput, match="scale 'printed' takes sgd"):
        Experiment(local_optimizer="adamw", scale="printed")


def test_scaffolds_control_is_the_mean_gradient_of_the_decayed_loss():
    """Without a server control, c_i = -delta / (K lr): the mean of gradient + decay * w along the path."""
    from fedlga.methods.scaffold import Scaffold

    devices = replace(make_devices(TrainingOptions(batch_size=9, weight_decay=0.3)), method=Scaffold())
    assignment = make_assignment(devices)
    update, memory = devices.perform(assignment, {})
    devices.model.gradient.zero_()
    w, mean = assignment.w.clone(), torch.zeros_like(assignment.w)
    for x, y in devices.batches(assignment):
        devices.model.load(w)
        cross_entropy(devices.model.module(x), y).backward()
        gradient = devices.model.gradient.clone() + 0.3 * w
        devices.model.gradient.zero_()
        mean += gradient / STEPS
        w = w - LR * gradient
    torch.testing.assert_close(memory["control"], mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(update.uploads["control"], mean, rtol=1e-4, atol=1e-6)


def test_scaffolds_control_is_the_mean_of_clipped_gradients():
    """Whatever the controls were: the correction is added after clipping, and cancels in the new control."""
    from fedlga.methods.scaffold import Scaffold

    clip = 0.05
    devices = replace(make_devices(TrainingOptions(batch_size=9, clip=clip)), method=Scaffold())
    assignment = make_assignment(devices)
    joint, own = torch.full_like(assignment.w, 0.2), torch.full_like(assignment.w, -0.1)
    _, memory = devices.perform(replace(assignment, broadcast={"control": joint}), {"control": own})
    w, mean = assignment.w.clone(), torch.zeros_like(assignment.w)
    devices.model.gradient.zero_()
    for x, y in devices.batches(assignment):
        devices.model.load(w)
        cross_entropy(devices.model.module(x), y).backward()
        gradient = devices.model.gradient.clone()
        assert gradient.norm() > clip
        gradient *= clip / gradient.norm()
        devices.model.gradient.zero_()
        mean += gradient / STEPS
        w = w - LR * (gradient + joint - own)
    torch.testing.assert_close(memory["control"], mean, rtol=1e-3, atol=1e-5)
