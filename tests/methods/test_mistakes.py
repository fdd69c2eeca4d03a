"""Mistakes that other implementations made.

Each is put into a copy of our code, and the check that guards against it must fail: a check that passes with the
mistake in place would be no test.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import types

import numpy as np
import pytest

import by_hand
from fedlga.core.method import Method
from fedlga.methods.fedavg import FedAvg


@pytest.fixture
def with_mistake(monkeypatch):
    """Return a function that copies one of our modules, with `right` replaced by `wrong`."""

    def copy(module_name: str, right: str, wrong: str) -> types.ModuleType:
        source = inspect.getsource(importlib.import_module(module_name))
        assert source.count(right) == 1, f"{right!r} is not once in {module_name}: put this mistake in elsewhere"
        module = types.ModuleType(module_name + "_with_mistake")
        monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
        exec(compile(source.replace(right, wrong), module.__name__, "exec"), module.__dict__)
        return module

    return copy


METHOD_MISTAKES = {
    "FedNova averages models, with weights that do not sum to one": (
        "fednova",
        'sums["delta"].total * (work / mass**2)',
        'sums["delta"].total * (1 / mass) - (work / mass**2) * state.w',
        by_hand.check_fednova,
    ),
    "FedNova divides by the sum of its weights, which cancels tau_eff": (
        "fednova",
        "(work / mass**2)",
        "(1 / mass)",
        by_hand.check_fednova,
    ),
    "FedNova's p_i over all devices in place of those that reported": (
        "fednova",
        "(work / mass**2)",
        "(work / 14**2)",  # the examples of all four devices
        by_hand.check_fednova_by_examples,
    ),
    "FedNova takes nominal work in place of steps done": (
        "fednova",
        "effective_steps(c.steps,",
        "effective_steps(c.update.steps_asked,",
        by_hand.check_fednova,
    ),
    "FedNova ignores momentum": (
        "fednova",
        "momentum=c.update.momentum",
        "momentum=0.0",
        by_hand.check_fednova_momentum,
    ),
    "FedNova ignores the proximal term": (
        "fednova",
        "momentum=c.update.momentum, pull=self.mu)",
        "momentum=c.update.momentum, pull=0.0)",
        by_hand.check_fednova_proximal,
    ),
    "Scaffold divides by nominal steps": (
        "scaffold",
        "effective_steps(steps,",
        "effective_steps(assignment.steps_asked,",
        by_hand.check_scaffold,
    ),
    "Scaffold divides by epochs": ("scaffold", "effective_steps(steps,", "effective_steps(1,", by_hand.check_scaffold),
    "Scaffold uses a rate that the schedule has moved on": (
        "scaffold",
        "path = assignment.lr *",
        "path = assignment.lr / 2 *",
        by_hand.check_scaffold_decay,
    ),
    "Scaffold ignores momentum": (
        "scaffold",
        "momentum=assignment.momentum",
        "momentum=0.0",
        by_hand.check_scaffold_momentum,
    ),
    "Scaffold divides the control by the cohort in place of all devices": (
        "scaffold",
        'WeightedVector(c.update.uploads["control"], c.share, c.share)',
        'WeightedVector(c.update.uploads["control"], c.share, 1 / 2)',
        by_hand.check_scaffold,
    ),
    "Scaffold starts its controls from the model's weights": (
        "scaffold",
        "- _control(memory, assignment)",
        '- (memory["control"] if "control" in memory else assignment.w)',
        by_hand.check_scaffold_from_other_weights,
    ),
    "FedDyn with the sign of h flipped": (
        "feddyn",
        "-self.alpha * c.share",
        "self.alpha * c.share",
        by_hand.check_feddyn,
    ),
    "FedDyn with the sign of h_i flipped": ("feddyn", "constant=-recall", "constant=recall", by_hand.check_feddyn),
    "FedDyn scales by alpha twice": ("feddyn", "/ -self.alpha]", "/ -(self.alpha**2)]", by_hand.check_feddyn),
    "FedDyn averages h over the cohort in place of all devices": (
        "feddyn",
        "-self.alpha * c.share",
        "-self.alpha / 2",
        by_hand.check_feddyn,
    ),
    "FedProx's term without its gradient": ("fedprox", "Local(pull=self.mu)", "Local()", by_hand.check_fedprox),
}


@pytest.mark.parametrize("mistake", METHOD_MISTAKES)
def test_a_mistake_in_a_method_is_caught(mistake, with_mistake):
    name, right, wrong, check = METHOD_MISTAKES[mistake]
    module = with_mistake(f"fedlga.methods.{name}", right, wrong)
    (cls,) = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    assert issubclass(cls, Method)
    with pytest.raises(AssertionError):
        check(cls)


@pytest.mark.parametrize(
    ("name", "check"), dict.fromkeys((name, check) for name, _, _, check in METHOD_MISTAKES.values())
)
def test_without_the_mistake_the_check_passes(name, check, with_mistake):
    """Otherwise a check might fail because of the copy, and not because of the mistake in it."""
    module = with_mistake(f"fedlga.methods.{name}", "from __future__ import annotations", "")
    (cls,) = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    check(cls)


def test_momentum_carried_across_rounds_is_caught(monkeypatch, with_mistake):
    module = with_mistake(
        "fedlga.learning.training",
        "velocity = torch.zeros_like(w) if",
        "velocity = globals().setdefault('kept', torch.zeros_like(w)) if",
    )
    monkeypatch.setattr("fedlga.learning.training.run_sgd", module.run_sgd)
    with pytest.raises(AssertionError):
        by_hand.check_momentum_starts_at_zero(FedAvg)


def test_p_over_all_devices_is_caught_in_plain_averaging(monkeypatch, with_mistake):
    module = with_mistake("fedlga.core.method", "return self.total.div_(self.weight)", "return self.total.div_(14)")
    monkeypatch.setattr("fedlga.core.method.WeightedSum.mean", module.WeightedSum.mean)
    with pytest.raises(AssertionError):
        by_hand.check_fedavg_by_examples(FedAvg)


@pytest.mark.parametrize(
    ("module", "right", "wrong", "place", "used"),
    [
        (
            "fedlga.core.schedules.base",
            "generator(f.seed, Stream.SAMPLE, round, *draw)",
            "generator_of_method(f.aggregator.method)",
            "select_devices",
            "fedlga.core.schedules.rounds.select_devices",
        ),
        (
            "fedlga.learning.training",
            "generator(assignment.seed, Stream.BATCHES, assignment.round, assignment.device)",
            "generator_of_method(self.method)",
            "Devices.batch_generator",
            "fedlga.learning.training.Devices.batch_generator",
        ),
    ],
    ids=["other devices", "other batches"],
)
def test_different_draws_for_each_method_are_caught(monkeypatch, with_mistake, module, right, wrong, place, used):
    copy = with_mistake(module, right, wrong)
    copy.generator_of_method = lambda method: np.random.default_rng(len(type(method).__name__))
    mistaken = copy
    for name in place.split("."):
        mistaken = getattr(mistaken, name)
    monkeypatch.setattr(used, mistaken)
    with pytest.raises(AssertionError):
        by_hand.check_that_draws_are_the_same_for_every_method()
