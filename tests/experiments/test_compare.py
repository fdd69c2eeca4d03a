"""Comparisons: which runs there are, what is done again, and the table by hand."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedlga.core.settings import BadInput
from fedlga.experiments.arms import Arm
from fedlga.experiments.compare import (
    Plan,
    find_targets,
    make_table,
    read_rounds,
    read_summaries,
    run_folder,
    run_plan,
    start,
    write_tables,
)
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import load_data
from run_folders import write_finished

TINY = preset("digits").changed({"rounds": 2, "steps_per_epoch": 1, "lr": 0.1})


def test_the_table_by_hand(tmp_path):
    """FedAvg needs 10, 12 and 14 rounds, FedProx 9 and 15 and never: they are compared on seeds that both reached."""
    plan = Plan(TINY, {}, ["fedavg", "fedprox"], [], [0, 1, 2])
    rounds = {("fedavg", 0): 10, ("fedavg", 1): 12, ("fedavg", 2): 14, ("fedprox", 0): 9, ("fedprox", 1): 15}
    for _, e, folder in plan.runs(tmp_path):
        facts = {"method": e.method, "stragglers": e.policy, "seed": e.seed, "best_accuracy": 0.5}
        write_finished(folder, **facts, rounds_to_target=rounds.get((e.method, e.seed)))
    fedavg, fedprox = make_table(plan, tmp_path)
    assert (fedavg["seeds"], fedavg["reached"], fedavg["rounds_to_target"], fedavg["rounds_to_target_sd"]) == (
        3,
        3,
        12,
        2,
    )
    assert (fedavg["rounds_more"], fedavg["rounds_more_sd"]) == (0, 0)
    assert (fedprox["seeds"], fedprox["reached"], fedprox["rounds_to_target"]) == (3, 2, 12)
    assert fedprox["rounds_more"] == ((9 - 10) + (15 - 12)) / 2
    assert fedprox["best_accuracy_sd"] == 0
    assert fedprox["seconds_to_target"] is None
    write_tables(plan, tmp_path)
    assert json.loads((tmp_path / "comparison.json").read_text())["table"] == [fedavg, fedprox]


def write_regression(folder: Path, target: float | None, rounds: int | None = None) -> None:
    facts = {"metric": "rmse", "better": "lower", "best_rmse": 2.0, "last_rmse": 3.0}
    write_finished(folder, **facts, target=target, rounds_to_target=rounds)


@pytest.fixture
def task() -> Experiment:
    return Experiment(task="python:mine", rounds=8)


def test_a_table_without_a_target(tmp_path, task):
    """It has no column about one, and none has a file. A task's target may be known from its runs only."""
    plan = Plan(task, {}, ["fedavg", "fedlga"], [], [0, 1])
    assert not any("target" in name or name in ("reached", "rounds_more") for name in make_table(plan, tmp_path)[0])
    for target in (None, 2.5):
        out = tmp_path / f"{target}"
        for _, _, folder in plan.runs(out):
            write_regression(folder, target)
        row, _ = make_table(plan, out)
        assert (row["seeds"], row["best_rmse"], row["last_rmse"]) == (2, 2.0, 3.0)
        assert row.get("reached") == (None if target is None else 0)
        write_tables(plan, out)
        for name in ("comparison.csv", "runs.csv", "comparison.json"):
            text = (out / name).read_text()
            assert [word in text for word in ("_to_target", "best_rmse")] == [target is not None, True]


def test_an_arm_without_a_target_among_others_that_have_one(tmp_path, task):
    arms = [Arm("fedavg", "keep"), Arm("fedavg", "drop", {"target": 2.5}), Arm("fedavg", "wait", {"target": 1.5})]
    plan = Plan(task, {}, [], [], [0, 1], more_arms=arms)
    for arm, e, folder in plan.runs(tmp_path):
        write_regression(folder, e.target, 4 if arm.policy == "drop" else None)
    rows = make_table(plan, tmp_path)
    assert [(row["reached"], row["rounds_to_target"]) for row in rows] == [(None, None), (2, 4), (0, None)]
    assert find_targets(read_summaries(plan, tmp_path), plan) == {
        "fedavg-keep": None,
        "fedavg-drop-target=2.5": 2.5,
        "fedavg-wait-target=1.5": 1.5,
    }


def test_runs_come_seed_by_seed():
    plan = Plan(TINY, {}, ["fedavg", "fedlga"], [], [3, 5])
    assert [(e.seed, e.method) for e in plan.experiments()] == [
        *((3, "fedavg"), (3, "fedlga"), (5, "fedavg"), (5, "fedlga")),
    ]


def test_a_bare_name_goes_to_the_methods_that_have_it():
    plan = Plan(TINY, {"mu": 0.5, "lr": 0.2}, ["fedavg", "fedprox", "fednova"], [], [0])
    assert [e.options for e in plan.experiments()] == [{}, {"fedprox": {"mu": 0.5}}, {"fednova": {"mu": 0.5}}]
    assert {e.lr for e in plan.experiments()} == {0.2}


def test_a_fleet_and_its_setting_are_changed_together():
    """A recorded fleet cannot be without its recording: not even between two changes."""
    plan = Plan(TINY, {"fleet": "trace", "trace": "t.csv"}, ["fedavg"], [], [0])
    assert plan.experiments()[0].settings("fleet") == {"trace": "t.csv"}


def test_a_name_that_none_has_is_refused():
    with pytest.raises(BadInput, match="mu: there is no such field in the experiment or in any of fedavg, scaffold"):
        Plan(TINY, {"mu": 0.5}, ["fedavg", "scaffold"], [], [0]).experiments()


def test_folders_of_own_classes_have_no_colon(tmp_path):
    plan = Plan(TINY, {}, ["methods_for_tests:Forgetful"], ["plugins_for_tests:KeepHalf"], [0])
    (arm,) = plan.arms
    folder = tmp_path / "methods_for_tests.Forgetful-plugins_for_tests.KeepHalf" / "seed-0"
    assert run_folder(tmp_path, arm, 0) == folder
    assert [folder for _, _, folder in plan.runs(tmp_path)] == [folder]


def test_an_arm_with_settings_of_its_own_is_a_row_of_its_own(tmp_path):
    """Its settings win over those of all; its runs are not mixed with those of the same method and policy."""
    arms = [Arm("fedprox", "keep", {"mu": 2.0}), Arm("fedprox", "keep", {"mu": 3.0, "lr": 0.5})]
    plan = Plan(TINY, {"mu": 0.5, "lr": 0.25}, ["fedavg", "fedprox"], [], [0, 1], more_arms=arms)
    assert [(e.lr, e.options.get("fedprox", {}).get("mu")) for e in plan.experiments()] == 2 * [
        *((0.25, None), (0.25, 0.5), (0.25, 2.0), (0.5, 3.0)),
    ]
    for arm, e, folder in plan.runs(tmp_path):
        write_finished(folder, seed=e.seed, best_accuracy=e.seed + 10.0 * plan.arms.index(arm), rounds_to_target=4)
    rows = make_table(plan, tmp_path)
    assert [(row["method"], row["stragglers"], row["settings"]) for row in rows] == [
        ("fedavg", "keep", ""),
        ("fedprox", "keep", ""),
        ("fedprox", "keep", "mu=2"),
        ("fedprox", "keep", "mu=3 lr=0.5"),
    ]
    assert [row["best_accuracy"] for row in rows] == [0.5, 10.5, 20.5, 30.5]
    write_tables(plan, tmp_path)
    runs = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert [(run["settings"], run["best_accuracy"]) for run in runs[:4]] == [
        *(("", "0.0"), ("", "10.0"), ("mu=2", "20.0"), ("mu=3 lr=0.5", "30.0")),
    ]


def test_an_arm_twice_is_refused():
    with pytest.raises(BadInput, match="--arm: fedavg-keep is there twice; each arm is compared once"):
        Plan(TINY, {}, ["fedavg"], [], [0], more_arms=[Arm("fedavg", "keep")]).experiments()


def test_a_plan_survives_its_file(tmp_path):
    plan = Plan(TINY, {"mu": 0.5}, ["fedavg", "fedprox"], [], [0, 1])
    start(plan, tmp_path / "c", load_data(TINY))
    assert Plan.load(tmp_path / "c") == plan
    assert "more_arms" not in (tmp_path / "c" / "comparison.toml").read_text(), "an earlier version can read it"
    with_arms = replace(plan, more_arms=[Arm("fedavg", "drop"), Arm("fedprox", "keep", {"mu": 1.5, "lr": 0.25})])
    start(with_arms, tmp_path / "d", load_data(TINY))
    assert Plan.load(tmp_path / "d") == with_arms
    for text in ("methods = [", "methods = []", 'base = "x"', "more_arms = [1]\n[base]"):
        (tmp_path / "c" / "comparison.toml").write_text(text)
        with pytest.raises(BadInput, match=r"--resume: .*comparison\.toml' is damaged"):
            Plan.load(tmp_path / "c")


def test_what_is_done_is_not_done_again(tmp_path):
    plan = Plan(TINY, {}, ["fedavg", "fedlga"], [], [0])
    data = load_data(TINY)
    start(plan, tmp_path / "c", data)
    steps = list(run_plan(plan, tmp_path / "c", data))
    assert [(s.number, s.record.round if s.record else None) for s in steps] == [
        *((1, 1), (1, 2), (1, None), (2, 1), (2, 2), (2, None)),
    ]
    assert [(s.number, s.record) for s in run_plan(plan, tmp_path / "c", data)] == [(1, None), (2, None)]
    (tmp_path / "c" / "fedlga-complete" / "seed-0" / "summary.json").write_text("{")
    again = [(s.number, s.record) for s in run_plan(plan, tmp_path / "c", data)]
    assert again == [(1, None), (2, None)], "all rounds are there: only the summary is written again"
    summaries = read_summaries(plan, tmp_path / "c")
    assert {(label, seed): s["method"] for label, runs in summaries.items() for seed, s in runs.items()} == {
        ("fedavg-keep", 0): "fedavg",
        ("fedlga-complete", 0): "fedlga",
    }
    rounds = read_rounds(plan, tmp_path / "c")
    assert {arm: {seed: len(records) for seed, records in runs.items()} for arm, runs in rounds.items()} == {
        "fedavg keep": {0: 2},
        "fedlga complete": {0: 2},
    }


def test_runs_that_are_not_done_are_not_in_the_table(tmp_path):
    plan = Plan(TINY, {}, ["fedavg", "fedlga"], [], [0])
    assert [(row["seeds"], row["reached"], row["best_accuracy"]) for row in make_table(plan, tmp_path)] == [
        (0, 0, None)
    ] * 2
    assert read_rounds(plan, Path(tmp_path)) == {}
