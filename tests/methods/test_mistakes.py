"""The mistakes that other implementations made. Each is put into our code, and the check that guards against it must
fail: a guard that lets its mistake pass would be no test.
"""

from __future__ import annotations

import importlib
import inspect
import types

import numpy as np
import pytest

import by_hand
from fedlga.methods.base import Method
from fedlga.methods.fedavg import FedAvg


def with_mistake(module_name: str, right: str, wrong: str) -> types.ModuleType:
    """A copy of one of our modules in which `right` was written as `wrong`."""
    original = importlib.import_module(module_name)
    source = inspect.getsource(original)
    assert source.count(right) >= 1, f"{right!r} is no longer in {module_name}: this mistake must be put in elsewhere"
    module = types.ModuleType(module_name + "_with_mistake")
    module.__package__ = original.__package__
    importlib.sys.modules[module.__name__] = module
    exec(compile(source.replace(right, wrong), module.__name__, "exec"), module.__dict__)
    return module


METHOD_MISTAKES = {
    "FedNova averages models, with weights that do not sum to one": (
        "fednova",
        "server.w + step * (work / mass**2)",
        "(1 - work / mass**2) * server.w + step * (1 / mass)",
        by_hand.fednova,
    ),
    "FedNova divides by the sum of its weights, which cancels tau_eff": (
        "fednova",
        "(work / mass**2)",
        "(1 / mass)",
        by_hand.fednova,
    ),
    "FedNova's p_i over all devices in place of those that reported": (
        "fednova",
        "(work / mass**2)",
        "(work / 14**2)",  # the examples of all four devices
        by_hand.fednova_by_examples,
    ),
    "FedNova takes nominal work in place of steps done": (
        "fednova",
        "effective_steps(u.steps,",
        "effective_steps(u.steps_asked,",
        by_hand.fednova,
    ),
    "FedNova ignores momentum": ("fednova", "momentum=u.momentum", "momentum=0.0", by_hand.fednova_momentum),
    "FedNova ignores the proximal term": (
        "fednova",
        "pull=self.mu)\n            step",
        "pull=0.0)\n            step",
        by_hand.fednova_proximal,
    ),
    "Scaffold divides by nominal steps": (
        "scaffold",
        "effective_steps(steps,",
        "effective_steps(task.steps_asked,",
        by_hand.scaffold,
    ),
    "Scaffold divides by epochs": ("scaffold", "effective_steps(steps,", "effective_steps(1,", by_hand.scaffold),
    "Scaffold uses a rate that the schedule has moved on": (
        "scaffold",
        "path = task.lr *",
        "path = task.lr / 2 *",
        by_hand.scaffold_decay,
    ),
    "Scaffold ignores momentum": ("scaffold", "momentum=task.momentum", "momentum=0.0", by_hand.scaffold_momentum),
    "Scaffold divides the control by the cohort in place of all devices": (
        "scaffold",
        "alpha=u.share",
        "alpha=1 / 2",
        by_hand.scaffold,
    ),
    "Scaffold starts its controls from the model's weights": (
        "scaffold",
        "- _control(memory, task)",
        '- (memory["control"] if "control" in memory else task.w)',
        by_hand.scaffold_elsewhere,
    ),
    "FedDyn with the sign of h flipped": ("feddyn", "alpha=-self.alpha", "alpha=self.alpha", by_hand.feddyn),
    "FedDyn with the sign of h_i flipped": ("feddyn", "constant=-remembered", "constant=remembered", by_hand.feddyn),
    "FedDyn scales by alpha twice": ("feddyn", "- drift / self.alpha", "- drift / self.alpha**2", by_hand.feddyn),
    "FedDyn averages h over the cohort in place of all devices": (
        "feddyn",
        "-self.alpha * u.share",
        "-self.alpha / 2",
        by_hand.feddyn,
    ),
    "FedProx's term without its gradient": ("fedprox", "Local(pull=self.mu)", "Local()", by_hand.fedprox),
}


@pytest.mark.parametrize("mistake", METHOD_MISTAKES)
def test_a_mistake_in_a_method_is_caught(mistake):
    name, right, wrong, check = METHOD_MISTAKES[mistake]
    module = with_mistake(f"fedlga.methods.{name}", right, wrong)
    (cls,) = [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    assert issubclass(cls, Method)
    with pytest.raises(AssertionError):
        check(cls)


def test_momentum_carried_across_rounds_is_caught(monkeypatch):
    module = with_mistake(
        "fedlga.local",
        "velocity = torch.zeros_like(w) if task.momentum else None",
        "velocity = globals().setdefault('kept', torch.zeros_like(w)) if task.momentum else None",
    )
    monkeypatch.setattr("fedlga.local.sgd", module.sgd)
    with pytest.raises(AssertionError):
        by_hand.momentum_starts_anew(FedAvg)


def test_p_over_all_devices_is_caught_in_plain_averaging(monkeypatch):
    module = with_mistake("fedlga.methods.base", "return total.div_(mass)", "return total.div_(14)")
    monkeypatch.setattr("fedlga.methods.fedavg.mean_delta", module.mean_delta)
    with pytest.raises(AssertionError):
        by_hand.fedavg_by_examples(FedAvg)


@pytest.mark.parametrize(
    ("module", "right", "wrong", "place"),
    [
        (
            "fedlga.federation",
            "generator(f.seed, Stream.SAMPLE, round)",
            "METHOD_DRAWS(f.method)",
            "fedlga.federation.select",
        ),
        (
            "fedlga.local",
            "generator(task.seed, Stream.BATCHES",
            "METHOD_DRAWS(self.method) or (0",
            "fedlga.local.Devices",
        ),
    ],
    ids=["other devices", "other batches"],
)
def test_different_draws_for_each_method_are_caught(monkeypatch, module, right, wrong, place):
    copy = with_mistake(module, right, wrong)
    copy.METHOD_DRAWS = lambda method: np.random.default_rng(len(type(method).__name__))
    monkeypatch.setattr(place, getattr(copy, place.rpartition(".")[2]))
    monkeypatch.setattr("fedlga.simulation.Devices", importlib.import_module("fedlga.local").Devices)
    with pytest.raises(AssertionError):
        by_hand.same_draws_for_every_method()
