"""What is run for each dataset: the paper's setting to the letter, and smaller ones that say so."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedlga.core.settings import BadInput
from fedlga.paper.redraw import find_setting
from fedlga.paper.settings import make_setting

SEARCHES = Path(__file__).parents[2] / "results" / "cifar"


@pytest.mark.parametrize("dataset", ["fashion-mnist", "cifar-10", "cifar-100"])
def test_the_papers_setting_is_exactly_configured(dataset):
    base = make_setting(dataset).base
    assert (base.devices, base.cohort, base.epochs, base.batch_size) == (50, 10, 5, 10)
    assert base.settings("fleet") == {"rho": 0.5, "tau_min": 1, "tau_max": 4}
    assert base.resolved().options["paper"]["tau_max"] == 4
    wanted = {"fashion-mnist": ("mlp", 2, 0.65), "cifar-10": ("resnet20", 2, 0.55), "cifar-100": ("resnet20", 20, 0.4)}
    assert (base.model, base.settings("partition")["classes_per_device"], base.target) == wanted[dataset]
    assert make_setting(dataset).exact


@pytest.mark.parametrize("dataset", ["cifar-10", "cifar-100"])
def test_a_smaller_setting_says_so(dataset):
    setting = make_setting(dataset, small=True)
    assert "NOT the paper's setting" in setting.note
    assert not setting.exact
    assert setting.name.endswith("-small")


def test_quick_and_small_do_not_meet():
    assert make_setting("cifar-10", small=True).name != make_setting("cifar-10", quick=True).name


def test_an_unknown_dataset_is_one_line():
    with pytest.raises(BadInput, match="--dataset: there is no 'mnist'"):
        make_setting("mnist")


@pytest.mark.parametrize(("dataset", "classes", "target"), [("cifar-10", 2, 0.55), ("cifar-100", 20, 0.4)])
def test_one_of_batches_is_the_papers_but_for_the_unit_of_work(dataset, classes, target):
    setting, exact = make_setting(dataset, batches=True), make_setting(dataset).base
    base = setting.base
    assert setting.name == f"{dataset}-batches"
    assert not setting.exact
    assert "one unit of work = one batch" in setting.note
    assert (base.model, base.augment, base.target) == ("resnet20", True, target)
    assert base.settings("partition")["classes_per_device"] == classes
    assert (base.steps_per_epoch, exact.steps_per_epoch) == (1, 0)
    same = {"steps_per_epoch": 0, "lr": exact.lr, "rounds": exact.rounds, "evaluate_every": exact.evaluate_every}
    assert base.changed(same).resolved() == exact.resolved()


@pytest.mark.parametrize("dataset", ["cifar-10", "cifar-100"])
def test_batches_are_run_at_the_rates_that_the_search_chose(dataset):
    with (SEARCHES / f"{dataset}.csv").open(newline="") as lines:
        best = [point for point in csv.DictReader(lines) if point["chosen"] == "True"]
    chosen = {point["arm"].partition("-")[0]: float(point["settings"].removeprefix("lr=")) for point in best}
    setting = make_setting(dataset, batches=True)
    assert chosen.keys() == {"fedavg", "fedlga", "feddyn"}
    assert chosen == {method: setting.own.get(method, {}).get("lr", setting.base.lr) for method in chosen}


def test_the_first_rounds_are_a_setting_of_their_own():
    setting = make_setting("cifar-10").cut(3)
    assert (setting.name, setting.base.rounds, setting.exact) == ("cifar-10-3-rounds", 3, False)
    assert setting.note.startswith("only the first 3 of 400 rounds; the paper's setting with ResNet-20")
    assert find_setting("cifar-10-3-rounds") == setting
    assert find_setting("cifar-100-batches").name == "cifar-100-batches"
