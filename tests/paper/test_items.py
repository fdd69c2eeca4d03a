"""The paper's items: which there are, what they vary, and the numbers that the paper prints."""

from __future__ import annotations

import pytest

from fedlga.paper.items import ITEMS
from fedlga.paper.printed import find_printed
from fedlga.paper.runs import ItemRuns
from fedlga.paper.settings import make_setting

NAMED = {
    *("accuracy", "loss", "best", "epochs", "rho", "runtime", "tau-max", "devices", "cohort", "scheme-i"),
    *("time", "audit"),
}


def test_every_item_is_there():
    assert set(ITEMS) == NAMED
    assert all(item.title and item.says for item in ITEMS.values())
    assert all(name == item.name for name, item in ITEMS.items())


def test_tau_max_is_a_share_of_the_work(tmp_path):
    runs = ItemRuns(ITEMS["tau-max"], make_setting("fashion-mnist"), [0], tmp_path, methods=["fedlga"])
    assert [e.settings("fleet")["tau_max"] for e, _ in runs.all()] == [1, 2, 3, 4]
    assert [e.resolved().options["paper"]["tau_max"] for e, _ in runs.all()] == [1, 2, 3, 4]
    assert runs.points[-1].name == "base"


@pytest.mark.parametrize("name", ["epochs", "rho", "devices", "cohort", "tau-max"])
def test_a_sweep_goes_through_the_papers_default(name):
    points = ITEMS[name].points(make_setting("fashion-mnist"))
    assert [point.name for point in points].count("base") == 1
    stops = [point.changes.get("stop_at_target", False) for point in points if point.name != "base"]
    assert set(stops) == {name not in ("devices", "cohort")}, "learning curves are as long as that of the default"


def test_the_papers_numbers():
    assert find_printed("accuracy", "fashion-mnist", "fedavg") == "116"
    assert find_printed("tau-max", "cifar-10", "fedlga", 0.4) == "157"
    assert find_printed("epochs", "fashion-mnist", "fedlga", 8) == "52"
    assert find_printed("rho", "fashion-mnist", "fedlga", 0.5) == "60"
    assert find_printed("rho", "fashion-mnist", "fedlga", 0.9) == "-"
    assert find_printed("cohort", "cifar-100", "fedlga", 25) == "78"
    assert find_printed("runtime", "cifar-100-small", "feddyn") == "12.7 a round, 2057 in all"
    assert find_printed("best", "cifar-10", "fedlga") == "64.44 %"
    assert find_printed("best", "cifar-10-batches", "fedavg") == "5.7 % lower"
    assert find_printed("best", "cifar-100", "fedavg") == "-"


def test_the_paper_is_quoted_as_it_speaks_of_a_data_set():
    """At rho = 0.1 it finds all methods similar on two data sets, and FedLGA ahead on the third."""
    rho = ITEMS["rho"]
    assert "at rho = 0.1 all methods are similar" in rho.quote(make_setting("fashion-mnist"))
    assert "at rho = 0.1 all methods are similar" in rho.quote(make_setting("cifar-10", small=True))
    assert "similar" not in rho.quote(make_setting("cifar-100"))
    assert "second-lowest" in ITEMS["loss"].quote(make_setting("cifar-10", batches=True))
    assert "second" not in ITEMS["loss"].quote(make_setting("cifar-100"))


def test_the_loss_is_computed_in_runs_of_its_own(tmp_path):
    runs = ItemRuns(ITEMS["loss"], make_setting("fashion-mnist"), [0], tmp_path)
    assert {(e.record, e.evaluate_every) for e, _ in runs.all()} == {("objective", 10)}


def test_scheme_i_draws_with_replacement(tmp_path):
    runs = ItemRuns(ITEMS["scheme-i"], make_setting("fashion-mnist"), [0], tmp_path)
    assert {e.sampling for e, _ in runs.all()} == {"with-replacement"}
    assert len(runs.all()) == 6
