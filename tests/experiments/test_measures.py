"""Measures: one entry in a list is a number in summaries, comparisons and reports."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import cast

import pytest

import fedlga
from fedlga.experiments.compare import Plan, run_plan, start
from fedlga.experiments.measures import (
    EndWatch,
    Measure,
    describe_machine,
    find_versions,
    format_target,
    is_finished,
    is_percentage,
    list_measures,
    metric_format,
    rounds_until_target,
    summarise_run,
)
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_run, read_summary
from fedlga.experiments.simulation import load_data
from fedlga.report.page import collect_runs, make_page
from run_folders import OLD_RUNS, make_record

TINY = preset("digits").changed({"rounds": 2, "steps_per_epoch": 1, "lr": 0.1})


@pytest.fixture
def new_measure() -> Iterator[Measure]:
    """One more entry: the simulated time, as a number of its own."""
    measure = Measure(
        "time_simulated",
        "time simulated",
        ".0f",
        lambda e, records: sum(r.simulated_seconds for r in records),
        table="end",
        short="time",
        in_report=True,
    )
    measures = cast("list[Measure]", list_measures("accuracy"))
    measures.append(measure)
    yield measure
    measures.remove(measure)


@pytest.mark.usefixtures("new_measure")
def test_a_new_measure_is_one_entry(tmp_path):
    plan = Plan(TINY, {}, ["fedavg"], [], [0, 1, 2])
    data = load_data(TINY)
    start(plan, tmp_path / "c", data)
    list(run_plan(plan, tmp_path / "c", data))
    folder = tmp_path / "c" / "fedavg-keep" / "seed-0"
    assert json.loads((folder / "summary.json").read_text())["time_simulated"] == 10.0
    assert read_run(folder).summary["time_simulated"] == 10.0
    (row,) = csv.DictReader((tmp_path / "c" / "comparison.csv").read_text().splitlines())
    assert (row["time_simulated"], row["time_simulated_sd"]) == ("10.0", "0.0")
    runs = list(csv.DictReader((tmp_path / "c" / "runs.csv").read_text().splitlines()))
    assert [run["time_simulated"] for run in runs] == ["10.0", "10.0", "10.0"]
    page = make_page(collect_runs([tmp_path / "c"]))
    assert "<th scope=col>time simulated</th>" in page
    assert "<td>10 ± 0</td>" in page


def test_a_new_measure_is_known_of_runs_that_are_done():
    """A run that was finished before the measure was there: it is computed from its records."""
    folder = OLD_RUNS / "paper-digits" / "base" / "fedlga-complete" / "seed-0"
    assert "last_train_loss" not in json.loads((folder / "summary.json").read_text())
    expected = json.loads((folder / "done.json").read_text())["last_train_loss"]
    assert read_summary(folder)["last_train_loss"] == pytest.approx(expected)


def test_without_in_report_it_is_not_on_the_page(tmp_path):
    fedlga.run(TINY, tmp_path / "run")
    page = make_page(collect_runs([tmp_path / "run"]))
    for measure in list_measures("accuracy"):
        shown = f"<th scope=col>{measure.title}</th>" in page
        value = read_run(tmp_path / "run").summary.get(measure.name)
        assert shown == (measure.in_report and value is not None), measure.name


@pytest.mark.parametrize("metric", ["accuracy", "rmse", "loss"])
def test_names_and_titles_are_unique(metric):
    measures = list_measures(metric)
    assert len({m.name for m in measures}) == len(measures) == len({m.title for m in measures})


def test_what_is_written_as_a_percentage():
    names = ("accuracy", "accuracy_slow", "top5_accuracy", "best_accuracy")
    assert {(metric_format(name), is_percentage(name)) for name in names} == {(".1%", True)}
    names = ("rmse", "mae", "loss", "inaccuracy_of_clocks", "f1")
    assert {(metric_format(name), is_percentage(name)) for name in names} == {(".4g", False)}


def test_a_target_as_text():
    assert format_target("accuracy", 0.65) == "65%"
    assert format_target("top5_accuracy", 0.65) == "top5_accuracy 65%"
    assert format_target("rmse", 0.5) == "rmse 0.5"
    assert format_target("rmse", None) == "no target"


def test_where_lower_is_better_by_hand():
    """Losses of 2, 0.5 and 1 in rounds of one second: 0.5 is reached in the second round, and is the best."""
    records = [make_record(round=r, loss=loss) for r, loss in ((1, 2.0), (2, 0.5), (3, 1.0))]
    e = TINY.changed({"rounds": 3, "metric": "loss", "target": 0.5}).resolved()
    assert (e.metric, e.better) == ("loss", "lower")
    summary = summarise_run(e, records)
    expected = {
        "metric": "loss",
        "better": "lower",
        "rounds_to_target": 2,
        "simulated_seconds_to_target": 2.0,
        "best_loss": 0.5,
        "final_loss": 1.0,
        "last_loss": pytest.approx(3.5 / 3),
        "last_loss_slow": None,
    }
    assert {name: summary[name] for name in expected} == expected
    assert not any("accuracy" in name for name in summary)


def test_the_measures_by_hand():
    """Three rounds of 1, 2 and 4 seconds; the target of 60 % is reached in the second."""
    accuracies = {1: 0.5, 2: 0.7, 3: 0.6}
    records = [
        make_record(round=r, accuracy=a, seconds=float(2 ** (r - 1)), simulated_seconds=5.0, train_loss=float(r))
        for r, a in accuracies.items()
    ]
    e = TINY.changed({"rounds": 3, "target": 0.6})
    until = rounds_until_target(e, records)
    assert until is not None
    assert [r.round for r in until] == [1, 2]
    summary = summarise_run(e, records)
    expected = {
        "rounds": 3,
        "rounds_to_target": 2,
        "seconds_to_target": 3.0,
        "simulated_seconds_to_target": 10.0,
        "best_accuracy": 0.7,
        "final_accuracy": 0.6,
        "last_accuracy": pytest.approx(0.6),
        "last_accuracy_slow": None,
        "last_train_loss": 2.0,
        "seconds": 7.0,
        "seconds_per_round": pytest.approx(7 / 3),
        "simulated_seconds": 15.0,
        "finished": True,
        "diverged": False,
    }
    assert {name: summary[name] for name in expected} == expected
    assert "approximation_error" not in summary, "it was not audited"
    assert "approximation_error" in summarise_run(e.changed({"audit": True}), records)


def test_a_run_without_rounds_has_a_summary():
    summary = summarise_run(TINY, [])
    assert (summary["rounds"], summary["finished"], summary["best_accuracy"]) == (0, False, None)


def test_only_the_last_ten_evaluations_are_the_end():
    records = [make_record(round=r, accuracy=float(r)) for r in range(1, 13)]
    assert summarise_run(TINY, records)["last_accuracy"] == sum(range(3, 13)) / 10


def test_the_last_fifth_of_the_time_by_hand():
    """Rounds of 40, 30, 15, 10 and 5 simulated seconds end at 40, 70, 85, 95 and 100: the last three after 80.

    The mean of the last ten evaluations would be over all of them, and a fifth of the rounds is one round.
    """
    seconds, accuracies = [40.0, 30.0, 15.0, 10.0, 5.0], [0.1, 0.2, 0.5, 0.75, 0.25]
    records = [
        make_record(round=i + 1, accuracy=a, accuracy_slow=a / 2 if i != 3 else None, simulated_seconds=s)
        for i, (s, a) in enumerate(zip(seconds, accuracies, strict=True))
    ]
    summary = summarise_run(TINY.changed({"rounds": 5}), records)
    assert summary["closing_accuracy"] == pytest.approx((0.5 + 0.75 + 0.25) / 3)
    assert summary["closing_accuracy_slow"] == pytest.approx((0.25 + 0.125) / 2), "where it was measured"
    assert summary["last_accuracy"] == pytest.approx(1.8 / 5)


def test_the_last_fifth_of_equal_rounds_and_of_one_long_round():
    """A round that ends exactly when four fifths are over is not in the last fifth."""
    ten = [make_record(round=r, accuracy=r / 10, simulated_seconds=5.0) for r in range(1, 11)]
    assert summarise_run(TINY, ten)["closing_accuracy"] == pytest.approx((0.9 + 1.0) / 2)
    long_last = [make_record(round=r, accuracy=r / 10, simulated_seconds=s) for r, s in ((1, 10), (2, 20), (3, 70))]
    assert summarise_run(TINY, long_last)["closing_accuracy"] == pytest.approx(0.3)


def test_without_an_evaluation_in_the_last_fifth_the_last_one_counts():
    accuracies = [0.1, 0.2, 0.3, None, None, None, None, None, None, None]
    records = [make_record(round=r + 1, accuracy=a, simulated_seconds=5.0) for r, a in enumerate(accuracies)]
    assert summarise_run(TINY, records)["closing_accuracy"] == 0.3
    assert summarise_run(TINY, records)["closing_accuracy_slow"] is None, "no device is always slow"
    assert summarise_run(TINY, [])["closing_accuracy"] is None


def test_a_time_limit_ends_a_run():
    """Rounds of 2 and 3 simulated seconds: 5 seconds are over."""
    e = TINY.changed({"rounds": 9, "target": 0.9})
    records = [make_record(round=1, simulated_seconds=2.0), make_record(round=2, simulated_seconds=3.0)]
    assert not is_finished(e, records)
    assert not is_finished(e.changed({"time_limit": 5.5}), records)
    assert is_finished(e.changed({"time_limit": 5.0}), records)
    assert is_finished(e.changed({"time_limit": 4.0}), records)
    assert not is_finished(e.changed({"time_limit": 1.0}), []), "a run has at least one round"
    assert is_finished(e.changed({"time_limit": 100.0, "rounds": 2}), records)


def test_what_ends_a_run():
    e = TINY.changed({"rounds": 3, "target": 0.9})
    assert not is_finished(e, [])
    assert not is_finished(e, [make_record(round=2)])
    assert is_finished(e, [make_record(round=3)])
    assert is_finished(e, [make_record(round=2, diverged=True)])
    assert not is_finished(e, [make_record(round=2, accuracy=0.95)])
    assert is_finished(e.changed({"stop_at_target": True}), [make_record(round=2, accuracy=0.95)])
    assert not is_finished(e, [make_record(round=2, note="the weights are no longer finite numbers")]), "a note is text"


def test_versions_and_machine():
    assert find_versions().keys() == {"python", "fedlga", "torch", "numpy"}
    assert "cores of" in describe_machine()


def test_the_end_is_seen_without_the_records():
    """After 2 of 3 rounds of 4 seconds a limit of 8 is reached; the watch says what is_finished says of the records."""
    records = [make_record(round=round, simulated_seconds=4.0) for round in (1, 2, 3)]
    for e, over in (
        (TINY.changed({"rounds": 3, "time_limit": 8.0}), [False, False, True, True]),
        (TINY.changed({"rounds": 3}), [False, False, False, True]),
        (TINY.changed({"rounds": 9, "target": 0.5, "stop_at_target": True}), [False, True, True, True]),
    ):
        watch = EndWatch(e)
        seen = [watch.over]
        for record in records:
            watch.add(record)
            seen.append(watch.over)
        assert seen == over == [is_finished(e, records[:done]) for done in range(4)]


def test_records_for_a_summary_may_come_one_by_one():
    records = [make_record(round=round, steps=[2, 3], bytes_down=7, accuracy=round / 10) for round in (1, 2)]
    assert summarise_run(TINY, iter(records)) == summarise_run(TINY, records)
    assert summarise_run(TINY, iter(records))["steps"] == 10
