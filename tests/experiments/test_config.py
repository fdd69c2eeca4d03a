"""Experiments: to TOML and back, settings in every spelling, and one clear line for each wrong one."""

from __future__ import annotations

import dataclasses
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.registry import SEAMS, find_owner, list_owners, names_of
from fedlga.core.settings import BadInput, settings_of
from fedlga.experiments.config import OWN, Experiment, experiment_fields, names_in_use

POSITIVE = st.floats(1e-6, 1e6)
SHARE = st.floats(0, 0.99)
FIELDS = st.fixed_dictionaries(
    {
        "dataset": st.sampled_from(["fashion-mnist", "cifar-10", "digits"]),
        "model": st.sampled_from(["mlp", "cnn", "my.module:function"]),
        "normalise": st.booleans(),
        "devices": st.integers(20, 100),
        "cohort": st.integers(5, 20),
        "epochs": st.integers(5, 9),
        "lr": st.floats(1e-9, 10),
        "lr_decay": st.floats(0, 0.999),
        "dropout": SHARE,
        "seed": st.integers(0, 2**63 - 1),
    },
    optional={
        "deadline": st.floats(0.001, 1e9),
        "stop_at_target": st.booleans(),
        "target": st.floats(0, 1),
        "metric": st.sampled_from(["accuracy", "loss"]),
        "better": st.sampled_from(["higher", "lower"]),
        "lr_step": st.integers(1, 99),
        "lr_warmup": st.integers(0, 9),
        "weight_decay": st.floats(0, 1),
        "label_smoothing": SHARE,
        "batch_norm": st.just("average"),
    },
)
# What can be chosen, with values for its settings.
CHOICES: dict[str, dict[str, dict[str, Any]]] = {
    "method": {
        "fedavg": {},
        "fedprox": {"mu": POSITIVE},
        "fednova": {"mu": POSITIVE},
        "scaffold": {},
        "feddyn": {"alpha": POSITIVE},
    },
    "stragglers": {
        "wait": {},
        "drop": {},
        "keep": {},
        "complete": {
            "scale": st.sampled_from(["feedback", "growth", "linear", "printed"]) | POSITIVE,
            "fading": SHARE,
            "longest": POSITIVE,
        },
    },
    "aggregation": {
        "mean": {"length_bound": POSITIVE},
        "median": {"length_bound": POSITIVE},
        "trimmed-mean": {"trim": st.floats(0.2, 0.45)},
    },
    "server_optimizer": {
        "sgd": {"eta_g": POSITIVE},
        "momentum": {"eta_g": POSITIVE, "beta": SHARE},
        "adagrad": {"eta_g": POSITIVE, "tau": POSITIVE},
        "adam": {"eta_g": POSITIVE, "beta_2": SHARE},
        "yogi": {"eta_g": POSITIVE, "beta_1": SHARE},
    },
    "fleet": {
        "equal": {},
        "paper": {"rho": st.floats(0, 1), "tau_min": st.just(1), "tau_max": st.integers(1, 5)},
        "speeds": {
            "deadline": POSITIVE,
            "speed_median": POSITIVE,
            "speed_sigma": SHARE,
            "slow_speed": st.floats(0.01, 1),
            "slow_classes": st.lists(st.integers(0, 9), max_size=3),
        },
        "population": {
            "deadline": POSITIVE,
            "tail": st.just(0.0) | st.floats(0.2, 3),
            "download": st.floats(0, 100),
            "available": st.floats(0.05, 0.5),
            "swing": st.just(1.5),
            "figures": st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"])),
        },
        "trace": {"trace": st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1)},
    },
    "partition": {
        "classes": {"classes_per_device": st.integers(1, 10), "examples_per_device": st.integers(0, 99)},
        "dirichlet": {"partition_alpha": POSITIVE},
        "iid": {"examples_per_device": st.integers(0, 99)},
        "quantity": {"partition_alpha": POSITIVE},
    },
}
NEEDED = {"deadline", "trace"}  # without it this fleet is refused


def choose_one(field: str) -> st.SearchStrategy[dict[str, Any]]:
    """Draw one choice of a field, with some of its settings."""
    return st.one_of(
        [
            st.fixed_dictionaries(
                {field: st.just(name), **{k: v for k, v in values.items() if k in NEEDED}},
                optional={k: v for k, v in values.items() if k not in NEEDED},
            )
            for name, values in CHOICES[field].items()
        ]
    )


# Changes that go together: one dict for the fields, and one for each choice. What comes later wins.
CHANGES = st.tuples(FIELDS, *map(choose_one, CHOICES)).map(lambda parts: {k: v for d in parts for k, v in d.items()})


@given(CHANGES)
def test_toml_there_and_back(changes):
    experiment = Experiment(**changes)
    assert experiment == Experiment().changed(changes)
    assert Experiment.from_toml(experiment.to_toml()) == experiment
    full = experiment.resolved()
    assert Experiment.from_toml(full.to_toml()) == full
    assert full.resolved() == full
    in_use = set(names_in_use(full.context()).values())
    assert set(full.options) <= in_use
    for kind, name in names_in_use(full.context()).items():
        assert full.settings(kind) == experiment.settings(kind) == full.options.get(name, {})
    for name, value in changes.items():  # nothing was lost
        owners = [values for values in full.options.values() if name in values]
        expected = tuple(value) if isinstance(value, list) else value
        assert [values[name] for values in owners] == [expected] * len(owners)
        assert owners or getattr(full, name) == expected


@given(CHANGES)
def test_a_file_may_have_its_settings_anywhere(changes):
    """Among the fields, in a table of their owner, or in a table below [options]: it is the same experiment."""
    experiment = Experiment(**changes)
    flat = {name: value for name, value in changes.items() if value is not None}
    values = experiment.as_dict()
    tables = values.pop("options", {})
    below_options = {**values, "options": tables}
    # A table of its own cannot have the name of a field: local SGD has a momentum too.
    own_tables = {name: table for name, table in tables.items() if name not in values}
    rest = {name: table for name, table in tables.items() if name in values}
    by_owner = {**values, **own_tables, **({"options": rest} if rest else {})}
    assert Experiment.from_dict(flat) == Experiment.from_dict(by_owner) == Experiment.from_dict(below_options)
    assert Experiment.from_dict(flat) == experiment


def test_every_choice_is_tried_here():
    """A new built-in belongs into CHOICES above. Real devices are tried with Flower, own partitions with tasks."""
    for kind, seam in SEAMS.items():
        if seam.field in CHOICES:
            built_in = set(names_of(kind)) - {"real", "fedlga", "own"}
            assert built_in == CHOICES[seam.field].keys()


SAME = {
    "flat, as before there were owners": """
        method = "fedprox"
        fleet = "paper"
        rho = 0.9
        tau_max = 3
        classes_per_device = 3
        speeds = []
        speed_median = 1.0
        slow_speed = 0.2
        partition_alpha = 0.5
        examples_per_device = 7
        [fedprox]
        mu = 0.5
    """,
    "a table of each owner": """
        method = "fedprox"
        [fedprox]
        mu = 0.5
        [paper]
        rho = 0.9
        tau_max = 3
        [classes]
        classes_per_device = 3
        examples_per_device = 7
    """,
    "tables below options": """
        method = "fedprox"
        [options.fedprox]
        mu = 0.5
        [options.paper]
        rho = 0.9
        tau_max = 3
        [options.classes]
        classes_per_device = 3
        examples_per_device = 7
    """,
    "all of it mixed": """
        method = "fedprox"
        mu = 0.5
        rho = 0.9
        examples_per_device = 7
        [paper]
        tau_max = 3
        [options.classes]
        classes_per_device = 3
    """,
}


@pytest.mark.parametrize("spelling", SAME)
def test_settings_in_every_spelling(spelling):
    expected = Experiment(method="fedprox", mu=0.5, rho=0.9, tau_max=3, classes_per_device=3, examples_per_device=7)
    assert expected.options == {
        "fedprox": {"mu": 0.5},
        "paper": {"rho": 0.9, "tau_max": 3},
        "classes": {"classes_per_device": 3, "examples_per_device": 7},
    }
    assert Experiment.from_toml(SAME[spelling]).resolved() == expected.resolved()
    changes = {"mu": 0.5, "rho": 0.9, "tau_max": 3, "classes_per_device": 3, "examples_per_device": 7}
    assert Experiment(method="fedprox").changed(changes) == expected
    dotted = {"fedprox.mu": 0.5, "paper.rho": 0.9, "paper.tau_max": 3}
    dotted |= {"classes.classes_per_device": 3, "classes.examples_per_device": 7}
    assert Experiment(method="fedprox").changed(dotted) == expected


def test_what_an_old_file_says_of_other_fleets_counts_when_they_are_chosen():
    old = Experiment.from_toml('fleet = "equal"\nrho = 0.9\nspeed_sigma = 0.1\npartition_alpha = 0.3\n')
    assert old.changed({"fleet": "paper"}).settings("fleet")["rho"] == 0.9
    assert old.changed({"fleet": "speeds", "deadline": 2.0}).settings("fleet")["speed_sigma"] == 0.1
    assert old.changed({"partition": "dirichlet"}).settings("partition") == {"partition_alpha": 0.3}
    assert old.resolved() == Experiment(fleet="equal").resolved(), "and does not count while they are not"


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "fedlga"])
def test_the_global_rate_of_an_old_file_is_the_server_optimisers(method):
    old = Experiment.from_toml(f'method = "{method}"\n[{method}]\neta_g = 2.0\n')
    assert old.settings("optimizer") == {"eta_g": 2.0}
    assert old == Experiment(method=method, eta_g=2.0)
    assert old.options == {"sgd": {"eta_g": 2.0}}


def test_the_global_rate_of_another_method_does_not_count():
    old = Experiment.from_toml('method = "scaffold"\n[scaffold]\neta_g = 2.0\n[fedavg]\neta_g = 3.0\n')
    assert old.options == {"sgd": {"eta_g": 2.0}}
    assert Experiment.from_toml('method = "fednova"\n[scaffold]\neta_g = 2.0\n') == Experiment(method="fednova")


def test_a_new_rate_is_not_overwritten_by_an_old_one():
    both = 'method = "scaffold"\n[scaffold]\neta_g = 2.0\n[sgd]\neta_g = 0.5\n'
    assert Experiment.from_toml(both).settings("optimizer") == {"eta_g": 0.5}


def test_listed_speeds_survive_toml():
    experiment = Experiment(devices=3, cohort=2, fleet="speeds", deadline=9.0, speeds=(1.0, 2.5, 3.0), partition="iid")
    assert Experiment.from_toml(experiment.to_toml()) == experiment


def test_a_resolved_experiment_says_everything():
    written = tomllib.loads(Experiment().resolved().to_toml())
    unset = {"time_limit", "task", "record"}  # there is no limit, no task, and nothing else to record
    assert {f.name for f in experiment_fields()} - written.keys() == unset
    assert written["options"] == {
        "complete": {"scale": "feedback", "fading": 0.95, "longest": 2.0, "private": False},
        "mean": {
            "length_bound": 0.0,
            "outlier_bound": 20.0,
            "most_refused": 1.0,
            "quarantine": 10,
            "quarantine_after": 3,
        },
        "sgd": {"eta_g": 1.0},
        "paper": {"rho": 0.5, "tau_min": 1, "tau_max": 4},
        "classes": {"classes_per_device": 2, "examples_per_device": 0},
    }
    assert (written["stragglers"], written["deadline"]) == ("complete", 5.0)
    assert (written["metric"], written["better"], written["lr_schedule"]) == ("accuracy", "higher", "constant")


def test_every_field_has_a_default_and_a_meaning():
    for field in dataclasses.fields(Experiment):
        assert field.name == "options" or field.metadata["meaning"]
    for kind, name in list_owners():
        for field in settings_of(find_owner(name)):
            assert field.metadata["meaning"], f"{kind} {name}.{field.name}"
            assert field.default is not dataclasses.MISSING


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedagv"}, "method: there is no 'fedagv'; did you mean 'fedavg'?"),
        ({"dataset": "fashion"}, "dataset: there is no 'fashion'; did you mean 'fashion-mnist'?"),
        ({"stragglers": "weight"}, "stragglers: there is no 'weight'; there is: complete, drop, keep, wait"),
        ({"partition": "dirichlett"}, "partition: there is no 'dirichlett'; did you mean 'dirichlet'?"),
        ({"fleet": "x"}, "fleet: there is no 'x'; there is: equal, paper, population, real, speeds, trace"),
        ({"aggregation": "medain"}, "aggregation: there is no 'medain'; did you mean 'median'?"),
        ({"server_optimizer": "adm"}, "server_optimizer: there is no 'adm'; did you mean 'adam'?"),
        (
            {"aggregation": "median", "cohort": 2},
            "aggregation: got 'median' with cohort 2; it takes a cohort of at least 3",
        ),
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
        ({"eta_g": -1}, "sgd.eta_g: got -1.0; it takes a number above 0"),
        ({"fedprox.mu": -1}, "fedprox.mu: got -1.0; it takes a number of at least 0"),
        ({"fedprox.nu": 1}, "fedprox.nu: there is no such field; there is: mu"),
        ({"fedprx.mu": 1}, "fedprx: there is no such field or table; did you mean 'fedprox'?"),
        (
            {"fedavg.eta_g": 1},
            "fedavg.eta_g: eta_g belongs to the server optimiser now, for every method: use sgd.eta_g",
        ),
        ({"rounds": "many"}, "rounds: got 'many'; it takes a whole number of at least 1"),
        ({"normalise": 1}, "normalise: got 1; it takes true or false"),
        ({"batchsize": 3}, "batchsize: there is no such field; did you mean 'batch_size'?"),
        (
            {"fleet": "speeds", "deadline": 5.0, "speeds": [1.0, 2.0]},
            "speeds: got 2 of them; it takes one for each of the 50 devices",
        ),
        (
            {"fleet": "speeds", "deadline": 5.0, "speeds": [-1.0] * 50},
            "it takes a list with each a number above 0",
        ),
        ({"fleet": "speeds"}, "deadline: fleet 'speeds' needs one; it takes a number of seconds above 0"),
        ({"fleet": "trace"}, "trace: got nothing with fleet 'trace'; it takes a CSV file"),
        (
            {"trace": "x.csv"},
            "trace: it is a setting of fleet 'trace', and this experiment's is 'paper'; "
            "set fleet=trace too, or trace.trace",
        ),
        (
            {"fleet": "equal", "rho": 0.9},
            "rho: it is a setting of fleet 'paper', and this experiment's is 'equal'; "
            "set fleet=paper too, or paper.rho",
        ),
        (
            {"partition": "iid", "partition_alpha": 0.9},
            "partition_alpha: it is a setting of partition 'dirichlet', and this experiment's is 'iid'; "
            "set partition=dirichlet too, or dirichlet.partition_alpha",
        ),
        ({"dropout": 1.0}, "dropout: got 1.0; it takes a number of at least 0 and below 1"),
        ({"method": "fedlga", "stragglers": "keep"}, "stragglers: got 'keep'; method fedlga takes complete"),
        ({"method": "no.such:Method"}, "method: cannot import 'no.such:Method'"),
        ({"method": "fedlga.core.types:Assignment"}, "is not a Method"),
        (
            {"fleet": "fedlga.methods.fedavg:FedAvg"},
            "is not a Fleet; it takes a class that extends fedlga.core.fleet.Fleet",
        ),
        ({"fleet": "real"}, "fleet: got 'real' with backend 'pool'; it takes backend 'flower'"),
        ({"dataset": OWN}, "dataset: got 'own' with fleet 'paper'; only tasks and real devices have their own data"),
    ],
)
def test_wrong_fields_get_one_line(changes, message):
    with pytest.raises(BadInput) as caught:
        Experiment().changed(changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rhoo = 1", "rhoo: there is no such field; did you mean 'rho'?"),
        ("[fedprx]\nmu = 1", "fedprx: there is no such field or table; did you mean 'fedprox'?"),
        ("[options.fedprx]\nmu = 1", "fedprx: there is no such field or table; did you mean 'fedprox'?"),
        ("[fedprox]\nnu = 1", "fedprox.nu: there is no such field; there is: mu"),
        ("[paper]\nrho = 2", "paper.rho: got 2.0; it takes a number from 0 to 1"),
        ('rho = "much"', "paper.rho: got 'much'; it takes a number from 0 to 1"),
        ("options = 3", "options: there is no such field"),
        ("[options]\nrho = 0.5", "options.rho: got 0.5; it takes a table of settings"),
        ('["no.such:Thing"]\nx = 1', "options: cannot import 'no.such:Thing'"),
        ("rounds = ", "TOML: not valid TOML"),
    ],
)
def test_a_wrong_file_gets_one_line(text, message):
    with pytest.raises(BadInput) as caught:
        Experiment.from_toml(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_fedlga_with_another_policy_says_what_to_do():
    with pytest.raises(BadInput, match="it is averaging with complete: for another policy use method fedavg"):
        Experiment(method="fedlga", stragglers="drop")


def test_a_bare_name_goes_to_the_method_or_policy_in_use():
    experiment = Experiment().changed({"method": "fedprox", "stragglers": "complete", "mu": 0.5, "scale": "printed"})
    assert experiment.options == {"fedprox": {"mu": 0.5}, "complete": {"scale": "printed"}}
    with pytest.raises(BadInput, match="mu: it is a setting of method 'fedprox', and this experiment's is 'fedavg'"):
        Experiment(method="fedavg").changed({"mu": 0.5})


def test_known_changes_are_those_of_what_is_in_use_once_they_are_made():
    changes = {"fleet": "trace", "trace": "t.csv", "mu": 1.0, "scale": 2.0, "complete.scale": 3.0, "nonsense": 1}
    known = Experiment(method="fedavg").select_known(changes)
    assert known == {"fleet": "trace", "trace": "t.csv", "complete.scale": 3.0}
    assert Experiment(method="fedprox", stragglers="complete").select_known({"mu": 1.0, "scale": 2.0}).keys() == {
        *("mu", "scale")
    }


def test_a_file_that_is_no_toml(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text("rounds = ")
    with pytest.raises(BadInput, match="not valid TOML"):
        Experiment.load(file)
    with pytest.raises(BadInput, match="No such file"):
        Experiment.load(tmp_path / "none.toml")
    file.write_bytes(b'dataset = "\xff"')
    with pytest.raises(BadInput, match="experiment: cannot read"):
        Experiment.load(file)
