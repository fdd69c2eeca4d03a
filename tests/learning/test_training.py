"""Training on a device: its batches, its time limit, its audit, and what it sends without a single step."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment, Local
from fedlga.learning import training
from fedlga.learning.examples import TensorExamples
from fedlga.learning.named import make_model
from fedlga.learning.training import Devices, TrainingOptions, add_local_terms, limit_time, steps_in_epoch
from fedlga.methods.fedavg import FedAvg
from fedlga.methods.scaffold import Scaffold
from methods_for_tests import Short


def make_devices(method=None, model="mlp", **options):
    rng = np.random.default_rng(2)
    images = torch.from_numpy(rng.standard_normal((50, 1, 8, 8)).astype(np.float32))
    labels = torch.arange(50) % 10
    parts = [np.arange(0, 23), np.arange(23, 50)]
    flat = make_model(model, (1, 8, 8), 10, 0)
    return Devices(method or FedAvg(), flat, TensorExamples(images, labels), parts, TrainingOptions(10, **options))


def assignment(devices, steps=4, asked=6, **changes):
    w = torch.linspace(-0.1, 0.1, len(devices.model.vector))
    values = {"round": 3, "device": 0, "lr": 0.1, "momentum": 0.0, "seed": 5, "broadcast": {}, **changes}
    return Assignment(w=w, steps=steps, steps_asked=asked, **values)


def test_each_epoch_passes_over_the_devices_data_once():
    devices = make_devices()
    asked = assignment(devices, steps=6)
    batches = [b.tolist() for b in devices.rows(asked, devices.batch_generator(asked))]
    assert [len(b) for b in batches] == [10, 10, 3, 10, 10, 3]
    assert sorted(chain(*batches[:3])) == sorted(chain(*batches[3:])) == list(range(23))
    assert batches[:3] != batches[3:]


@pytest.mark.parametrize("options", [{}, {"augment": True, "resize": 12}])
def test_a_slow_device_sees_the_beginning_of_the_same_batches(options):
    devices = make_devices(**options)
    short, full = (list(devices.batches(assignment(devices, steps=steps))) for steps in (4, 6))
    assert len(short) == 4
    for (images, labels), (same_images, same_labels) in zip(short, full, strict=False):
        assert torch.equal(images, same_images)
        assert torch.equal(labels, same_labels)


def test_other_rounds_devices_and_seeds_have_other_batches():
    devices = make_devices()
    asked = assignment(devices)
    others = [replace(asked, round=4), replace(asked, device=1), replace(asked, seed=6)]
    first, again, *different = (next(devices.batches(a))[0] for a in [asked, asked, *others])
    assert torch.equal(first, again)
    assert not any(torch.equal(first, images) for images in different)


@pytest.mark.parametrize("fast", [True, False])
def test_an_audit_also_gives_the_update_of_the_full_work(fast):
    devices = make_devices(fast=fast)
    update, _ = devices.perform(assignment(devices, audit=True), {})
    full, _ = devices.perform(assignment(devices, steps=6), {})
    assert (update.steps, update.steps_asked, update.examples) == (4, 6, 23)
    assert torch.equal(update.truth, full.delta)
    assert not torch.equal(update.truth, update.delta)
    finished, _ = devices.perform(assignment(devices, steps=6, audit=True), {})
    assert finished.truth is None
    plain, _ = devices.perform(assignment(devices), {})
    assert torch.equal(plain.delta, update.delta), "the audit changes nothing"


@pytest.mark.parametrize("fast", [True, False])
def test_without_a_step_a_device_sends_zeros_and_keeps_its_memory(fast):
    devices = make_devices(Scaffold(), fast=fast)
    memory = {"control": torch.ones(len(devices.model.vector))}
    update, remembered = devices.perform(assignment(devices, steps=0), memory)
    assert update.steps == 0
    assert not update.delta.any()
    assert not update.uploads["control"].any()
    assert update.train_loss == 0.0
    assert remembered.keys() == {"control"}
    assert remembered["control"] is memory["control"]


def test_uploads_of_another_size_are_refused():
    devices = make_devices(Short())
    size = len(devices.model.vector)
    with pytest.raises(BadInput, match=rf"finish uploads loss of \(1,\) .*; it takes loss, of \({size},\)"):
        devices.perform(assignment(devices), {})


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that only `sleep` and the test move."""
    clock = SimpleNamespace(now=100.0)
    clock.monotonic = lambda: clock.now

    def sleep(seconds):
        clock.now += seconds

    clock.sleep = sleep
    monkeypatch.setattr(training, "time", clock)
    return clock


def test_a_time_limit_ends_before_the_step_that_would_begin_too_late(clock):
    done = []
    for batch in limit_time(iter(range(10)), seconds=5.0, pace=0.0):
        done.append(batch)
        clock.now += 2.0  # a step
    assert done == [0, 1, 2]  # begun at 0, 2 and 4 seconds; the last is finished


def test_a_pace_slows_steps_down_and_never_past_the_deadline(clock):
    started = clock.now
    times = [clock.now - started for _ in limit_time(iter(range(10)), seconds=7.0, pace=2.0)]
    assert times == [2.0, 4.0, 6.0]
    assert clock.now - started == 7.0


def test_a_device_with_a_time_limit_reports_the_steps_it_did(clock, monkeypatch):
    devices = make_devices()
    compute = training.compute_gradients

    def compute_slowly(*arguments):
        clock.now += 1.0
        return compute(*arguments)

    monkeypatch.setattr(training, "compute_gradients", compute_slowly)
    timed, _ = devices.perform(assignment(devices, steps=6, seconds=2.5), {})
    assert timed.steps == 3
    assert not timed.finished
    plain, _ = replace(devices, options=replace(devices.options, fast=False)).perform(assignment(devices, steps=3), {})
    assert torch.equal(timed.delta, plain.delta), "the same batches as without a clock"


def test_draws_of_layers_repeat_and_leave_torchs_generator_alone():
    devices = make_devices(model="models_for_tests:with_dropout")
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    one, two = (devices.perform(assignment(devices), {})[0].delta for _ in range(2))
    assert torch.equal(one, two)
    assert torch.equal(torch.rand(1), expected)


def test_local_terms_by_hand():
    # gradient + constant + pull (w - w_sent) = (1, 2) + (10, 20) + 0.5 ((3, 3) - (1, 2))
    gradient = torch.tensor([1.0, 2.0])
    add_local_terms(gradient, torch.tensor([10.0, 20.0]), 0.5, torch.tensor([3.0, 3.0]), torch.tensor([1.0, 2.0]))
    assert gradient.tolist() == [12.0, 22.5]
    add_local_terms(gradient, None, 0.0, torch.zeros(2), torch.ones(2))
    assert gradient.tolist() == [12.0, 22.5]


def test_a_gradient_is_clipped_to_its_largest_norm():
    devices = make_devices(clip=0.01)
    delta = devices.train(assignment(devices, steps=1, lr=1.0), Local()).delta
    assert float(delta.norm()) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(("examples", "batch", "fixed", "steps"), [(23, 10, 0, 3), (20, 10, 0, 2), (23, 10, 1, 1)])
def test_steps_in_an_epoch(examples, batch, fixed, steps):
    assert steps_in_epoch(examples, batch, fixed) == steps
