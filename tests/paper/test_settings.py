"""What is run for each dataset: the paper's setting to the letter, and smaller ones that say so."""

from __future__ import annotations

import pytest

from fedlga.core.settings import BadInput
from fedlga.paper.settings import make_setting


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
