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
    assert " to rmse 0.9 " in out  # the title of a column, below "rounds"
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
    assert "2 arms, 4 points, 1 seed for the choice, 2 held out, into t" in out
    assert "on 1 other seed by mean rmse over the last fifth of the simulated time" in " ".join(out.split())
    (header,) = [row for row in out.splitlines() if row.startswith("arm ")]
    assert max(map(len, out.split(header)[1].split("written:")[0].splitlines())) <= 80
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


def test_tune_by_the_name_of_the_metric_and_by_no_other(fedlga, line):
    """What is refused is refused before anything is run or written."""
    words = ("--stragglers", "keep", "--grid", "lr=0.01,0.1", "--widen", 0, "--rounds", 2, "--workers", 1)
    words += ("--seeds", "100", "--held-out", "0")
    for by, more, message in (
        ("accuracy", (), "got 'accuracy', and the target metric is rmse; it takes rmse, slow or time"),
        ("beauty", (), "got 'beauty', and the target metric is rmse; it takes rmse, slow or time"),
        ("rmse", ("--set", "metric=loss"), "got 'rmse', and the target metric is loss; it takes loss, slow or time"),
        ("slow", ("--set", "fleet=paper"), "got 'slow', and no device of this fleet is always slow; it takes rmse or "),
    ):
        code, out, err = fedlga("tune", line, *words, "--by", by, *more, "--out", "t")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"fedlga: --by: {message}")
        assert not Path("t").exists()
    line.write_text(TASK.replace('"target": 0.9, ', ""))
    code, out, err = fedlga("tune", line, *words, "--by", "time", "--out", "t")
    message = "fedlga: --by: got 'time', and the experiment has no target; set one with --target\n"
    assert (code, out, err) == (2, "", message)
    assert not Path("t").exists()
    code, out, err = fedlga("tune", line, *words, "--by", "rmse", "--out", "t")
    assert (code, err) == (0, "")
    assert Path("t/tuning.toml").read_text().startswith('by = "metric"\n')
    assert "by mean rmse over" in " ".join(out.split())
    assert "ahead, behind" not in out, "there is one arm"
    assert "accuracy" not in out


def test_tune_by_slow_devices_that_the_test_data_cannot_tell(fedlga, line):
    line.write_text(
        TASK.replace(
            "return x, x @ np.array([1.0, -2.0]) + 0.5", "return {'train': (x, x[:, 0]), 'test': (x, x[:, 1])}"
        )
    )
    words = ("--stragglers", "keep", "--grid", "lr=0.01,0.1", "--rounds", 2, "--by", "slow", "--out", "t")
    code, out, err = fedlga("tune", line, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(
        "fedlga: --by: got 'slow', and the test set belongs to no device and has no classes; it takes"
    )
    assert not Path("t").exists()


def test_without_a_target_nothing_speaks_of_one(fedlga, line):
    """Neither the table, nor the lines below it, nor the files, nor the page and its figures."""
    line.write_text(TASK.replace('"target": 0.9, ', "").replace('"fleet": "speeds", "deadline": 2.0,', ""))
    code, out, err = fedlga("run", line, "--rounds", 2, "--out", "r")
    assert (code, err) == (0, "")
    code, shown, err = fedlga(
        "compare", line, "--methods", "fedavg,fedlga", "--seeds", "0-1", "--rounds", 3, "--out", "c"
    )
    assert (code, err) == (0, "")
    (header,) = [row for row in shown.splitlines() if row.startswith("method ")]
    assert " ".join(header.split()) == "method stragglers best rmse rmse at the end simulated seconds in all"
    rows = [row.split() for row in shown.splitlines() if row.startswith(("fedavg ", "fedlga "))]
    best, last, seconds = (
        read_csv("c/comparison.csv")[0][name] for name in ("best_rmse", "last_rmse", "simulated_seconds")
    )
    assert rows[0] == ["fedavg", "keep", f"{float(best):.4g}", f"{float(last):.4g}", f"{float(seconds):.0f}"]
    assert fedlga("report", "c")[0] == 0
    page = re.sub(r"<(details|script|style).*?</\1>", "", texts("c/report.html"), flags=re.DOTALL)
    files = [
        Path(f"c/{name}").read_text() for name in ("comparison.csv", "runs.csv", "comparison.json", "comparison.svg")
    ]
    for text in (out, shown, page, *files):
        for word in ("target", "reached", "never", "rounds_more", "v first", "horizontal line"):
            assert word not in text
    words = ("--stragglers", "keep,complete", "--grid", "lr=0.1", "--rounds", 2, "--workers", 1, "--out", "t")
    code, out, err = fedlga("tune", line, *words, "--seeds", "100", "--held-out", "0-1")
    assert (code, err) == (0, "")
    for text in (out, *(Path(f"t/held-out/{name}.csv").read_text() for name in ("comparison", "runs", "paired"))):
        assert "target" not in text


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
