"""A regression from its file to the page: every command speaks of rmse, and of accuracy none."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TASK = '''"""A line."""

import numpy as np
from torch import nn

experiment = {
    "devices": 4, "cohort": 3, "epochs": 2, "lr": 0.1, "target": 0.9, "backend": "serial",
    "fleet": "speeds", "deadline": 2.0,
}


def model():
    return nn.Linear(2, 1)


def data():
    x = np.random.default_rng(0).standard_normal((80, 2))
    return x, x @ np.array([1.0, -2.0]) + 0.5
'''


@pytest.fixture
def line(fedlga, tmp_path) -> Path:
    file = tmp_path / "line.py"
    file.write_text(TASK)
    return file


def read_csv(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(file).read_text().splitlines()))


def texts(page: str) -> str:
    """Return a page without its pictures."""
    return re.sub(r"data:[a-z]+/[^\"']*", "", Path(page).read_text())


def test_run_and_report(fedlga, line):
    code, out, err = fedlga("run", line, "--rounds", 3, "--out", "r")
    assert (code, err) == (0, "")
    assert "measured by rmse, lower is better, target 0.9" in out
    assert "best rmse" in out
    summary = json.loads(Path("r/summary.json").read_text())
    values = [json.loads(row)["rmse"] for row in Path("r/rounds.jsonl").read_text().splitlines()]
    assert summary["best_rmse"] == min(values)
    assert summary["rounds_to_target"] == next(i for i, value in enumerate(values, 1) if value <= 0.9)
    assert Path("r/task.py").read_text() == TASK
    assert fedlga("report", "r")[0] == 0
    page = texts("r/report.html")
    assert "rmse" in page
    for text in (out, page, json.dumps(summary)):
        assert "accuracy" not in text.lower()


def test_compare_and_report(fedlga, line):
    words = ("--methods", "fedavg,fedlga", "--seeds", "0-1", "--rounds", 3, "--out", "c")
    code, out, err = fedlga("compare", line, *words)
    assert (code, err) == (0, "")
    assert "rounds to rmse 0.9" in out
    (first, second) = read_csv("c/comparison.csv")
    runs = [float(run["best_rmse"]) for run in read_csv("c/runs.csv") if run["method"] == "fedavg"]
    assert float(first["best_rmse"]) == pytest.approx(sum(runs) / 2)
    assert second["method"] == "fedlga"
    assert fedlga("report", "c")[0] == 0
    everything = "".join(
        (out, texts("c/report.html"), *(Path(f"c/comparison.{kind}").read_text() for kind in ("csv", "json", "svg")))
    )
    assert "rmse" in everything
    assert "accuracy" not in everything.lower()


def test_tune_takes_the_lowest_and_report(fedlga, line):
    words = ("--stragglers", "keep,complete", "--grid", "lr=0.01,0.1", "--widen", 0, "--rounds", 3, "--out", "t")
    code, out, err = fedlga("tune", line, *words, "--seeds", "100", "--held-out", "0-1", "--workers", 1)
    assert (code, err) == (0, "")
    assert "by mean of the target metric over the last fifth" in out
    by_arm: dict[str, list[dict[str, str]]] = {}
    for row in read_csv("t/tuning.csv"):
        by_arm.setdefault(row["arm"], []).append(row)
    assert by_arm.keys() == {"fedavg-keep", "fedavg-complete"}
    for rows in by_arm.values():
        (chosen,) = [row for row in rows if row["chosen"] == "True"]
        assert float(chosen["mean"]) == min(float(row["mean"]) for row in rows if row["mean"])
        assert chosen["settings"] == "lr=0.1", "ten times as far in three rounds"
    assert {row["measure"] for row in read_csv("t/held-out/paired.csv")} >= {"closing_rmse"}
    assert fedlga("report", "t")[0] == 0
    everything = out + texts("t/report.html") + Path("t/held-out/paired.csv").read_text()
    assert "rmse" in everything
    assert "accuracy" not in everything.lower()
    code, out, err = fedlga("compare", "--tuned", "t", "--seeds", "5", "--out", "c")
    assert (code, err) == (0, "")
    assert "rmse" in out


def test_the_metric_and_the_target_can_be_chosen(fedlga, line):
    code, out, err = fedlga("run", line, "--rounds", 2, "--set", "metric=mae", "--target", 0.7, "--out", "r")
    assert (code, err) == (0, "")
    assert "measured by mae, lower is better, target 0.7" in out
    code, out, err = fedlga("run", line, "--rounds", 2, "--target", 3, "--out", "far")
    assert (code, err) == (0, ""), "an rmse of 3 is a target like any other"
    assert "to rmse 3" in out


def test_a_run_is_continued(fedlga, line):
    assert fedlga("run", line, "--rounds", 2, "--out", "r")[0] == 0
    assert fedlga("run", "--resume", "r", "--rounds", 4)[0] == 0
    assert len(Path("r/rounds.jsonl").read_text().splitlines()) == 4
    line.write_text(TASK.replace("0.5", "0.6"))
    code, _, err = fedlga("run", "--resume", "r", "--rounds", 6)
    assert code == 2
    assert err.startswith("fedlga: --resume: line.py has changed since the run was started")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("def data():", "def dat():"), "line.py has no data()"),
        (("nn.Linear(2, 1)", "nn.Linear(3, 1)"), "line.py: model() does not take these inputs, float32 of 2 each"),
        (
            ("return x, x @", "return x[:5], x @"),
            "line.py: data(): got x with float32 of 5 x 2 and y with float32 of 80",
        ),
        (("(80, 2)", "(80, 2"), "line.py is not valid Python"),
        (('"lr"', '"lrr"'), "line.py: experiment: lrr: there is no such field"),
        (('"lr": 0.1', '"lr": -1'), "line.py: experiment: lr: got -1"),
    ],
)
def test_a_mistake_in_the_file_costs_one_line(fedlga, line, change, message):
    line.write_text(TASK.replace(*change))
    code, _, err = fedlga("run", line, "--rounds", 1, "--out", "r")
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert not Path("r").exists()
