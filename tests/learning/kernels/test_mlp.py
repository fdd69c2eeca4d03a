"""Compiled code gives what the plain path gives, for every rule and size it serves; elsewhere it is left out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedlga import completion, kernels
from fedlga.completion import look
from fedlga.experiment import preset
from fedlga.local import Devices
from fedlga.methods import make_method
from fedlga.models import FlatModel, mlp
from fedlga.simulation import rounds
from fedlga.types import Local, Task

CLOSE = 2e-5  # of the update's length, after at most 30 steps: sums of float32 in another order


def network(inputs, hidden, classes):
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def devices(module, inputs, classes, examples=40, batch_size=10, **more):
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.standard_normal((examples, 1, 1, inputs)).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, classes, examples))
    parts = [np.arange(examples)]
    return Devices(make_method("fedavg", {}), FlatModel(module), images, labels, parts, batch_size, **more)


def task(w, steps, lr=0.05, momentum=0.0):
    return Task(0, 0, w, steps, steps, lr, momentum, seed=3, shared={})


RELU = nn.ReLU()


class Halved(nn.Sequential):
    """A network with a mind of its own."""

    def forward(self, x):
        return super().forward(x) / 2


def hooked(module):
    module[1].register_forward_hook(lambda layer, given, out: out / 2)
    return module


def test_there_is_a_compiler_here():
    assert kernels.mlp.compiled() is not None, "the tests below would compare the plain path with itself"


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
    fast = devices(decided(network(inputs, hidden, classes)), inputs, classes, batch_size=batch)
    fast = replace(fast, images=fast.images / 10)
    plain = replace(fast, model=FlatModel(decided(network(inputs, hidden, classes))), fast=False)
    assert fast.kernel is not None
    assert plain.kernel is None
    w = fast.model.vector.clone()
    added = torch.linspace(-0.01, 0.01, len(w)) if constant else None
    asked, local = task(w, steps, lr=0.01, momentum=momentum), Local(constant=added, pull=pull)
    delta, done, loss = fast.train(asked, local)
    expected, count, mean = plain.train(asked, local)
    assert done == count == steps
    assert loss == pytest.approx(mean, rel=1e-4)
    assert float((delta - expected).norm()) <= CLOSE * float(expected.norm())


def decided(module):
    """Every other unit is on for all data, the rest off. A unit at its kink is on in one sum and off in another that
    differs by its last bit: no fault of either, and thousands of times that bit in what comes of it.
    """
    with torch.no_grad():
        module[1].bias.copy_(torch.tensor([0.5, -0.5]).repeat(len(module[1].bias) // 2))
    return module


@pytest.mark.parametrize("seed", range(5))
def test_units_that_switch_are_learned_all_the_same(seed):
    """With the weights that torch gives: all units switch, and one in many thousands does so in one sum alone."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 10))
    fast = devices(module, 784, 10)
    w = fast.model.vector.clone()
    delta, _, _ = fast.train(task(w, 20), Local())
    expected, _, _ = replace(fast, fast=False).train(task(w, 20), Local())
    assert float((delta - expected).norm()) <= 2e-3 * float(expected.norm())


def test_the_last_batch_of_an_epoch_may_be_short():
    fast = devices(network(16, 8, 3), 16, 3, examples=23, batch_size=10)
    w = fast.model.vector.clone()
    delta, _, _ = fast.train(task(w, 7), Local())
    expected, _, _ = replace(fast, fast=False).train(task(w, 7), Local())
    torch.testing.assert_close(delta, expected, rtol=1e-3, atol=1e-6)


def test_what_is_sent_stays_as_it_was():
    fast = devices(mlp((1, 8, 8), 10), 64, 10)
    w = fast.model.vector.clone()
    before = w.clone()
    fast.train(task(w, 5), Local())
    assert torch.equal(w, before)


def test_a_diverging_device_says_so():
    fast = devices(network(16, 8, 3), 16, 3)
    delta, _, loss = fast.train(task(fast.model.vector.clone(), 30, lr=1e30), Local())
    assert not torch.isfinite(delta).all()
    assert not np.isfinite(loss)


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
def test_models_it_does_not_serve_take_the_plain_path(module):
    assert devices(module, 16, 3).kernel is None


@pytest.mark.parametrize("more", [{"clip": 1.0}, {"resize": 8}, {"augment": True}, {"fast": False}])
def test_settings_it_does_not_serve_take_the_plain_path(more):
    assert devices(network(16, 8, 3), 16, 3, **more).kernel is None


def test_frozen_layers_and_other_losses_take_the_plain_path():
    frozen = network(16, 8, 3)
    frozen[1].weight.requires_grad_(False)
    assert devices(frozen, 16, 3).kernel is None
    assert kernels.FusedMLP.fitting(FlatModel(network(16, 8, 3), nn.functional.multi_margin_loss)) is None


def test_without_a_compiler_the_same_federation_runs(tmp_path):
    """In a process of its own, where no compiler is on the path and nothing was built before."""
    script = (
        "from fedlga.experiment import preset; from fedlga.simulation import rounds; import fedlga.kernels as kernels;"
        "last = list(rounds(preset('digits').changed({'rounds': 3})))[-1];"
        "print(kernels.mlp.compiled() is None, last.accuracy)"
    )
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "CC": "", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    plain, accuracy = done.stdout.split()
    assert plain == "True"
    here = list(rounds(preset("digits").changed({"rounds": 3})))[-1].accuracy
    assert float(accuracy) == pytest.approx(here, abs=0.01)


@pytest.mark.parametrize("said", ["exit 1", "echo version; [ $# -eq 1 ]", "echo version"])
def test_a_compiler_that_fails_is_as_good_as_none(tmp_path, monkeypatch, said):
    broken = tmp_path / "cc"
    broken.write_text(f"#!/bin/sh\n{said}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert kernels.built.library.__wrapped__("mlp") is None
    assert not list((tmp_path / "cache").rglob("*.so"))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(4097, 60_000), seed=st.integers(0, 9))
def test_a_compiled_look_is_a_plain_one(size, seed):
    delta = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    compiled = look(delta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(completion, "looked", lambda *_: None)
        plain = look(delta)
    assert compiled.size == pytest.approx(plain.size, rel=1e-5)
    torch.testing.assert_close(compiled.sketch, plain.sketch, rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 10_000), count=st.integers(1, 9), seed=st.integers(0, 9))
def test_a_compiled_mean_is_a_plain_one(size, count, seed):
    draws = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(size, generator=draws) for _ in range(count)]
    counts = [0.5 + k for k in range(count)]
    found = kernels.mean(vectors, counts, sum(counts))
    wanted = sum(c * v.double() for c, v in zip(counts, vectors, strict=True)) / sum(counts)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 4095, 4096, 20_000, 3 * 4096])
def test_threads_change_no_bit_of_a_mean(size, monkeypatch):
    from fedlga.kernels import updates

    vectors = [torch.randn(size) for _ in range(7)]
    counts = [0.5 + k for k in range(7)]
    monkeypatch.setattr(updates, "WORTH_A_THREAD", 1)
    found: list[torch.Tensor | None] = []
    for cores in (1, 2, 3, 4):
        monkeypatch.setattr(updates, "CORES", cores)
        found.append(kernels.mean(vectors, counts, sum(counts)))
    assert found[0] is not None
    assert all(other is not None and torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("constant", [torch.tensor(0.1), torch.full((1,), 0.1, dtype=torch.float64)])
def test_a_constant_of_another_shape_or_kind_is_spread_first(constant):
    """torch would broadcast it; the compiled code must not read past its end."""
    here = devices(network(16, 8, 3), 16, 3)
    assert here.kernel is not None
    w = here.model.vector.clone()
    spread = torch.full_like(w, 0.1)
    found, wanted = (here.train(task(w, 3), Local(constant=c))[0] for c in (constant, spread))
    torch.testing.assert_close(found, wanted)


def test_vectors_it_cannot_read_are_left_to_torch():
    assert kernels.mean([torch.zeros(10)[::2]], [1.0], 1.0) is None
    assert kernels.mean([torch.zeros(3), torch.zeros(4)], [1.0, 1.0], 2.0) is None
