"""Experiments: to TOML and back, presets, and one clear line for each wrong field."""

from __future__ import annotations

import dataclasses
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.experiment import PRESET_MEANINGS, PRESETS, Experiment, parsed, preset, seeds
from fedlga.experiment import settings as experiment_fields
from fedlga.settings import BadInput

EXPERIMENTS = st.builds(
    dict,
    dataset=st.sampled_from(["fashion-mnist", "cifar-10", "digits"]),
    model=st.sampled_from(["mlp", "cnn", "my.module:function"]),
    normalise=st.booleans(),
    devices=st.integers(20, 100),
    cohort=st.integers(1, 20),
    partition=st.sampled_from(["classes", "dirichlet", "iid", "quantity"]),
    partition_alpha=st.floats(0.001, 1e6),
    method=st.sampled_from(["fedavg", "fednova", "scaffold"]),
    stragglers=st.sampled_from([None, "wait", "drop", "keep", "complete"]),
    epochs=st.integers(5, 9),
    lr=st.floats(1e-9, 10),
    lr_decay=st.floats(0, 0.999),
    rho=st.floats(0, 1),
    tau_max=st.one_of(st.none(), st.integers(1, 5)),
    deadline=st.one_of(st.none(), st.floats(0.001, 1e9)),
    dropout=st.floats(0, 0.99),
    seed=st.integers(0, 2**63 - 1),
    options=st.sampled_from(
        [{}, {"fedprox": {"mu": 0.25}}, {"complete": {"scale": 2.0}}, {"complete": {"scale": "printed"}}]
    ),
)


@settings(deadline=None)
@given(EXPERIMENTS)
def test_toml_there_and_back(values):
    experiment = Experiment(**values)
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    full = experiment.resolved()
    assert Experiment.from_toml(full.to_toml()) == full
    assert full.resolved() == full


def test_listed_speeds_survive_toml():
    experiment = Experiment(devices=3, cohort=2, fleet="speeds", deadline=9.0, speeds=(1.0, 2.5, 3.0), partition="iid")
    assert Experiment.from_toml(experiment.to_toml()) == experiment


def test_a_resolved_experiment_says_everything():
    written = tomllib.loads(Experiment().resolved().to_toml())
    unset = {"trace"}  # TOML knows no unset
    assert {f.name for f in experiment_fields()} - unset <= written.keys()
    assert written["complete"] == {"scale": "trusted", "fading": 0.95, "longest": 2.0}
    assert written["fedlga"] == {"eta_g": 1.0}
    assert (written["stragglers"], written["tau_max"], written["deadline"]) == ("complete", 4, 5.0)


def test_the_presets():
    assert (
        PRESETS.keys() == PRESET_MEANINGS.keys() == {"paper", "paper-epochs", "fleet", "cifar10", "cifar100", "digits"}
    )
    paper = preset("paper")
    assert paper == Experiment()
    facts = (paper.devices, paper.cohort, paper.epochs, paper.batch_size, paper.rho, paper.classes_per_device)
    assert facts == (50, 10, 5, 10, 0.5, 2)
    assert (paper.target, preset("cifar10").target, preset("cifar100").target) == (0.65, 0.55, 0.40)
    assert preset("cifar100").classes_per_device == 20
    assert preset("cifar10").model == preset("cifar100").model == "resnet20"


def test_every_field_has_a_default_and_a_meaning():
    for field in dataclasses.fields(Experiment):
        assert field.name == "options" or field.metadata["meaning"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "fedagv"}, "method: there is no 'fedagv'; did you mean 'fedavg'?"),
        ({"dataset": "fashion"}, "dataset: there is no 'fashion'; did you mean 'fashion-mnist'?"),
        ({"stragglers": "weight"}, "stragglers: there is no 'weight'; did you mean 'wait'?"),
        (
            {"partition": "dirichlett"},
            "it takes one of classes, dirichlet, iid, quantity (did you mean 'dirichlet'?)",
        ),
        ({"fleet": "x"}, "fleet: got 'x'; it takes one of equal, paper, speeds, trace"),
        ({"cohort": 51}, "cohort: got 51; it takes at most the 50 devices there are"),
        ({"classes_per_device": 11}, "classes_per_device: got 11; it takes 1 to 10, the classes of fashion-mnist"),
        ({"rho": 1.5}, "rho: got 1.5; it takes a number from 0 to 1"),
        ({"rho": -0.1}, "rho: got -0.1; it takes a number from 0 to 1"),
        ({"rho": float("nan")}, "rho: got nan; it takes a number from 0 to 1"),
        ({"tau_max": 6}, "tau_max: got 6; it takes 1 to epochs, which is 5"),
        ({"tau_min": 5}, "tau_min: got 5; it takes 1 to tau_max, which is 4"),
        ({"epochs": 0}, "epochs: got 0; it takes a whole number of at least 1"),
        ({"epochs": 2.5}, "epochs: got 2.5; it takes a whole number of at least 1"),
        ({"lr": -0.1}, "lr: got -0.1; it takes a number above 0"),
        ({"lr": 0}, "lr: got 0.0; it takes a number above 0"),
        ({"lr_decay": 1.0}, "lr_decay: got 1.0; it takes a number of at least 0 and below 1"),
        ({"momentum": -1}, "momentum: got -1.0; it takes a number of at least 0 and below 1"),
        ({"eta_g": -1}, "fedlga.eta_g: got -1.0; it takes a number above 0"),
        ({"fedprox.mu": -1}, "fedprox.mu: got -1.0; it takes a number of at least 0"),
        ({"fedprox.nu": 1}, "fedprox.nu: there is no such field; did you mean 'mu'?"),
        ({"fedprx.mu": 1}, "method: there is no 'fedprx'; did you mean 'fedprox'?"),
        ({"rounds": "many"}, "rounds: got 'many'; it takes a whole number of at least 1"),
        ({"normalise": 1}, "normalise: got 1; it takes true or false"),
        ({"batchsize": 3}, "batchsize: there is no such field; did you mean 'batch_size'?"),
        ({"speeds": [1.0, 2.0]}, "speeds: got 2 of them; it takes one for each of the 50 devices"),
        ({"speeds": [-1.0] * 50}, "it takes a list with each a number above 0"),
        ({"fleet": "speeds"}, "deadline: fleet 'speeds' needs one; it takes a number of seconds above 0"),
        ({"fleet": "trace"}, "trace: got None with fleet 'trace'; fleet 'trace' takes a CSV file, others take none"),
        ({"trace": "x.csv"}, "trace: got 'x.csv' with fleet 'paper'; fleet 'trace' takes a CSV file, others take none"),
        ({"dropout": 1.0}, "dropout: got 1.0; it takes a number of at least 0 and below 1"),
        ({"method": "fedlga", "stragglers": "keep"}, "stragglers: got 'keep'; method fedlga takes complete"),
        ({"method": "no.such:Method"}, "method: cannot import 'no.such:Method'"),
        ({"method": "fedlga.types:Task"}, "is not a Method"),
    ],
)
def test_wrong_fields_get_one_line(changes, said):
    with pytest.raises(BadInput) as caught:
        Experiment().changed(changes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fedlga_with_another_policy_says_what_to_do():
    with pytest.raises(BadInput, match="it is averaging with complete: for another policy use method fedavg"):
        Experiment(method="fedlga", stragglers="drop")


def test_a_bare_name_goes_to_the_method_or_policy_in_use():
    experiment = Experiment().changed({"method": "fedprox", "stragglers": "complete", "mu": 0.5, "scale": "printed"})
    assert experiment.options == {"fedprox": {"mu": 0.5}, "complete": {"scale": "printed"}}
    with pytest.raises(BadInput, match="mu: there is no such field"):
        Experiment(method="fedavg").changed({"mu": 0.5})


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("rho=0.9", ("rho", 0.9)),
        ("dataset=cifar-10", ("dataset", "cifar-10")),
        ("normalise=false", ("normalise", False)),
        ("speeds=[1, 2.5]", ("speeds", [1, 2.5])),
        ('trace="a b.csv"', ("trace", "a b.csv")),
        ("lr = 1e-3", ("lr", 0.001)),
    ],
)
def test_set_takes_toml_values_and_plain_texts(text, pair):
    assert parsed(text) == pair


@pytest.mark.parametrize("text", ["rho", "=3", ""])
def test_set_takes_nothing_else(text):
    with pytest.raises(BadInput, match="it takes key=value"):
        parsed(text)


def test_seeds():
    assert seeds("0-4") == [0, 1, 2, 3, 4]
    assert seeds("7, 1-2") == [7, 1, 2]
    for wrong in ("", "a", "4-", "1,1", "5-3", "-1"):
        with pytest.raises(BadInput, match="--seeds"):
            seeds(wrong)


def test_a_file_that_is_no_toml(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("rounds = ")
    with pytest.raises(BadInput, match="not valid TOML"):
        Experiment.load(file)
    with pytest.raises(BadInput, match="No such file"):
        Experiment.load(tmp_path / "none.toml")
