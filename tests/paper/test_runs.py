"""The runs behind the items: shared between them, never done twice, never mixed with other experiments."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from fedlga.core.settings import BadInput
from fedlga.paper.items import ITEMS, SIX
from fedlga.paper.runs import ItemRuns, check_same_experiments, find_missing, plan_items
from fedlga.paper.settings import make_setting
from run_folders import OLD_RUNS, write_finished


def test_items_share_their_runs(tmp_path):
    """Curves, bars and running times are one set of runs, which is also a point of every sweep."""
    setting = make_setting("fashion-mnist")
    names = ["accuracy", "best", "runtime"]
    three = find_missing(plan_items(names, setting, [0, 1], tmp_path))
    assert len(three) == len(find_missing(plan_items(["accuracy"], setting, [0, 1], tmp_path))) == 12
    swept = find_missing(plan_items([*names, "rho"], setting, [0, 1], tmp_path))
    assert len(swept) == 12 + 2 * 12  # two other values of rho


def test_a_damaged_end_of_a_run_is_made_again(tmp_path):
    runs = ItemRuns(ITEMS["tau-max"], make_setting("digits"), [0], tmp_path, ["fedlga"])
    _, folder = runs.all()[0]
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{")
    assert len(find_missing([runs])) == 4


def test_a_run_is_done_when_its_summary_says_so(tmp_path):
    runs = ItemRuns(ITEMS["tau-max"], make_setting("digits"), [0], tmp_path, ["fedlga"])
    (_, first), (_, second), *_ = runs.all()
    write_finished(first)
    write_finished(second)
    assert len(find_missing([runs])) == 2
    summary = json.loads((second / "summary.json").read_text())
    (second / "summary.json").write_text(json.dumps({**summary, "finished": False}))
    assert len(find_missing([runs])) == 3


def test_runs_of_an_earlier_version_are_not_done_again(tmp_path):
    """They can be read. Their scale of completing is no longer the default, so an item is not continued with them."""
    shutil.copytree(OLD_RUNS / "paper-digits", tmp_path / "runs" / "digits")
    setting = make_setting("digits")
    with pytest.raises(BadInput, match="holds another experiment"):
        check_same_experiments(ItemRuns(ITEMS["tau-max"], setting, [0], tmp_path, ["fedlga"]).all())
    then = replace(setting, base=setting.base.changed({"method": "fedlga", "complete.scale": "trusted"}))
    runs = ItemRuns(ITEMS["tau-max"], then, [0], tmp_path, ["fedlga"])
    check_same_experiments(runs.all())
    assert find_missing([runs]) == []
    assert [row["point"] for row in runs.rows] == ["tau-max-0.2", "tau-max-0.4", "tau-max-0.6", "base"]
    for row, (_, folder) in zip(runs.rows, runs.all(), strict=True):
        done = json.loads((folder / "done.json").read_text())
        assert {name: row[name] for name in done} == done, "what done.json said"


def test_another_experiment_is_refused(tmp_path):
    runs = ItemRuns(ITEMS["accuracy"], make_setting("digits"), [0], tmp_path)
    e, folder = runs.all()[0]
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(e.resolved().to_toml())
    check_same_experiments(runs.all())
    (folder / "experiment.toml").write_text(e.changed({"rho": 0.123}).to_toml())
    with pytest.raises(BadInput, match="holds another experiment than this item's; take another folder"):
        check_same_experiments(runs.all())


def test_the_least_work_comes_first(tmp_path):
    setting = make_setting("fashion-mnist")
    items = plan_items(["all"], setting, [0], tmp_path)
    assert {runs.item.name for runs in items} == set(ITEMS)
    rounds = [sum(e.rounds for e, _ in runs.all()) for runs in items]
    assert rounds == sorted(rounds)
    with pytest.raises(BadInput, match=r"ITEM: there is no 'acuracy'; did you mean 'accuracy'\?"):
        plan_items(["acuracy"], setting, [0], tmp_path)


def test_a_method_may_have_settings_of_its_own(tmp_path):
    setting = replace(make_setting("digits"), own={"feddyn": {"lr": 0.3}})
    runs = ItemRuns(ITEMS["accuracy"], setting, [0], tmp_path)
    assert {e.method: e.lr for e, _ in runs.all()} == {**dict.fromkeys(SIX, 0.05), "feddyn": 0.3}


def test_some_methods_only(tmp_path):
    setting = make_setting("digits")
    (runs,) = plan_items(["accuracy"], setting, [0], tmp_path, ["fedavg", "feddyn"])
    assert [e.method for e, _ in runs.all()] == ["fedavg", "feddyn"]
    with pytest.raises(BadInput, match="--methods: there is no 'fedsgd'"):
        plan_items(["accuracy"], setting, [0], tmp_path, ["fedsgd"])
    with pytest.raises(BadInput, match="--methods: got scaffold; devices has none of them"):
        plan_items(["devices"], setting, [0], tmp_path, ["scaffold"])
