"""The compiled SGD gives what autograd gives, for every rule and size it serves; elsewhere it is not used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedlga.core.types import Assignment, Local
from fedlga.learning.examples import TensorExamples
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.kernels.mlp import FusedMLP, load_function
from fedlga.learning.models import mlp
from fedlga.learning.training import Devices, TrainingOptions
from fedlga.methods.fedavg import FedAvg

CLOSE = 2e-5  # of the update's length, after at most 30 steps: sums of float32 in another order


def network(inputs, hidden, classes):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def make_devices(module, inputs, classes, examples=40, batch_size=10, **more):
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.standard_normal((examples, 1, 1, inputs)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, classes, examples))
    options = TrainingOptions(batch_size, **more)
    return Devices(FedAvg(), FlatModel(module), TensorExamples(images, labels), [np.arange(examples)], options)


def without_kernel(devices):
    return replace(devices, options=replace(devices.options, fast=False))


def assignment(w, steps, lr=0.05, momentum=0.0):
    return Assignment(0, 0, w, steps, steps, lr, momentum, seed=3, broadcast={})


RELU = nn.ReLU()


class Halved(nn.Sequential):
    """A network whose forward does something of its own."""

    def forward(self, x):
        return super().forward(x) / 2


def hooked(module):
    module[1].register_forward_hook(lambda layer, inputs, out: out / 2)
    return module


def test_there_is_a_compiler_here():
    assert load_function() is not None, "the tests below would compare autograd with itself"


@settings(max_examples=40, deadline=None)
@given(
    inputs=st.sampled_from([16, 64, 784, 800, 3072]),
    hidden=st.sampled_from([8, 24, 400]),
    classes=st.sampled_from([2, 10, 37]),
    batch=st.integers(1, 17),
    steps=st.integers(1, 30),
    momentum=st.sampled_from([0.0, 0.9]),
    pull=st.sampled_from([0.0, 0.5]),
    constant=st.booleans(),
)
def test_the_kernel_gives_what_autograd_gives(inputs, hidden, classes, batch, steps, momentum, pull, constant):
    fast = make_devices(fix_units(network(inputs, hidden, classes)), inputs, classes, batch_size=batch)
    fast = replace(fast, examples=TensorExamples(fast.examples.inputs / 10, fast.examples.targets()))
    plain = without_kernel(replace(fast, model=FlatModel(fix_units(network(inputs, hidden, classes)))))
    assert fast.kernel is not None
    assert plain.kernel is None
    w = fast.model.vector.clone()
    added = torch.linspace(-0.01, 0.01, len(w)) if constant else None
    asked, local = assignment(w, steps, lr=0.01, momentum=momentum), Local(constant=added, pull=pull)
    result, expected = fast.train(asked, local), plain.train(asked, local)
    assert result.steps == expected.steps == steps
    assert result.loss == pytest.approx(expected.loss, rel=1e-4)
    assert float((result.delta - expected.delta).norm()) <= CLOSE * float(expected.delta.norm())


def fix_units(module):
    """Set the biases so that every other unit is on for all data, and the rest off.

    A unit near zero may be on in one order of summation and off in another that differs in the last bit. Neither is
    wrong, and the results differ by thousands of times that bit.
    """
    with torch.no_grad():
        module[1].bias.copy_(torch.tensor([0.5, -0.5]).repeat(len(module[1].bias) // 2))
    return module


@pytest.mark.parametrize("seed", range(5))
def test_units_that_switch_are_trained_too(seed):
    """With torch's starting weights all units switch, and one in many thousands switches in one order of sums only."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10))
    fast = make_devices(module, 784, 10)
    w = fast.model.vector.clone()
    delta = fast.train(assignment(w, 20), Local()).delta
    expected = without_kernel(fast).train(assignment(w, 20), Local()).delta
    assert float((delta - expected).norm()) <= 2e-3 * float(expected.norm())


def test_the_last_batch_of_an_epoch_may_be_short():
    fast = make_devices(network(16, 8, 3), 16, 3, examples=23, batch_size=10)
    w = fast.model.vector.clone()
    delta = fast.train(assignment(w, 7), Local()).delta
    expected = without_kernel(fast).train(assignment(w, 7), Local()).delta
    torch.testing.assert_close(delta, expected, rtol=1e-3, atol=1e-6)


def test_the_weights_sent_do_not_change():
    fast = make_devices(mlp((1, 8, 8), 10), 64, 10)
    w = fast.model.vector.clone()
    before = w.clone()
    fast.train(assignment(w, 5), Local())
    assert torch.equal(w, before)


def test_a_device_that_diverges_reports_non_finite_numbers():
    fast = make_devices(network(16, 8, 3), 16, 3)
    result = fast.train(assignment(fast.model.vector.clone(), 30, lr=1e30), Local())
    assert not torch.isfinite(result.delta).all()
    assert not np.isfinite(result.loss)


@pytest.mark.parametrize(
    "module",
    [
        network(17, 8, 3),
        network(16, 7, 3),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8, bias=False), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), RELU, nn.Linear(8, 3), RELU),  # one child, used twice
        Halved(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)),
        hooked(network(16, 8, 3)),
    ],
)
def test_models_it_does_not_serve_use_autograd(module):
    assert make_devices(module, 16, 3).kernel is None


@pytest.mark.parametrize(
    "more", [{"clip": 1.0}, {"resize": 8}, {"augment": True}, {"fast": False}, {"optimizer": "adamw"}]
)
def test_options_it_does_not_serve_use_autograd(more):
    assert make_devices(network(16, 8, 3), 16, 3, **more).kernel is None


def test_frozen_layers_and_other_losses_use_autograd():
    frozen = network(16, 8, 3)
    frozen[1].weight.requires_grad_(False)
    assert make_devices(frozen, 16, 3).kernel is None
    served = make_devices(network(16, 8, 3), 16, 3)
    assert served.kernel is not None
    other_loss = FlatModel(network(16, 8, 3), nn.functional.multi_margin_loss)
    assert FusedMLP.for_model(other_loss, served.examples) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda images, labels: (images.double(), labels),
        lambda images, labels: (images, labels.int()),
        lambda images, labels: (images, labels.float()),
        lambda images, labels: (images, labels[:, None]),
        lambda images, labels: ((images, images), labels),
        lambda images, labels: (images.expand(-1, 2, -1, -1)[:, :, :, ::2], labels),  # not in one piece
    ],
    ids=["doubles", "short labels", "numbers", "a table of labels", "two inputs", "a view"],
)
def test_data_it_does_not_serve_uses_autograd(change):
    devices = make_devices(network(16, 8, 3), 16, 3)
    examples = TensorExamples(*change(devices.examples.inputs, devices.examples.targets()))
    assert replace(devices, examples=examples).kernel is None


def test_weights_of_lower_precision_use_autograd():
    assert make_devices(network(16, 8, 3).bfloat16(), 16, 3).kernel is None


@pytest.mark.parametrize("constant", [torch.tensor(0.1), torch.full((1,), 0.1, dtype=torch.float64)])
def test_a_constant_of_another_shape_or_type_is_expanded_first(constant):
    """torch would broadcast it; the compiled code must not read past its end."""
    devices = make_devices(network(16, 8, 3), 16, 3)
    assert devices.kernel is not None
    w = devices.model.vector.clone()
    expanded = torch.full_like(w, 0.1)
    result, wanted = (devices.train(assignment(w, 3), Local(constant=c)).delta for c in (constant, expanded))
    torch.testing.assert_close(result, wanted)
