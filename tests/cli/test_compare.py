"""fedlga compare: one table over the same seeds, and going on after an interruption."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest

from commands import FAST

pytestmark = pytest.mark.slow


def test_compare_prints_and_writes_one_table(fedlga):
    words = ("--methods", "fedavg,fedprox,fedlga", "--seeds", "0-1", "--rounds", 8, "--target", 0.2, "--out", "c")
    code, out, err = fedlga("compare", *FAST, *words, "--set", "mu=0.5")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if line.startswith(("fedavg ", "fedprox ", "fedlga "))]
    assert len(rows) == 3
    assert all("2/2" in row for row in rows)
    assert max(map(len, rows)) <= 80
    table = json.loads(Path("c/comparison.json").read_text())
    assert [row["method"] for row in table["table"]] == ["fedavg", "fedprox", "fedlga"]
    assert len(table["runs"]) == 6
    fedavg = [run["rounds_to_target"] for run in table["runs"] if run["method"] == "fedavg"]
    assert table["table"][0]["rounds_to_target"] == sum(fedavg) / 2
    assert table["table"][0]["rounds_more"] == 0
    assert Path("c/comparison.csv").read_text().startswith("method,stragglers,settings,seeds,reached,rounds_to_target,")
    assert len(Path("c/runs.csv").read_text().splitlines()) == 7
    assert "mu = 0.5" in Path("c/fedprox-keep/seed-0/experiment.toml").read_text()


def test_compare_pairs_policies_with_the_methods_that_take_them(fedlga):
    words = ("--methods", "fedavg,fedlga", "--stragglers", "keep,complete", "--seeds", "0", "--rounds", 1, "--out", "c")
    code, out, _ = fedlga("compare", *FAST, *words)
    assert code == 0
    assert out.startswith("left out: fedlga with keep; it takes complete\n3 runs into c\n")
    assert {p.name for p in Path("c").iterdir() if p.is_dir()} == {"fedavg-keep", "fedavg-complete", "fedlga-complete"}


def test_a_target_never_reached_is_said(fedlga):
    _, out, _ = fedlga(
        "compare", *FAST, "--methods", "fedavg", "--seeds", "0", "--rounds", 1, "--target", 1, "--out", "c"
    )
    (row,) = [line for line in out.splitlines() if line.startswith("fedavg ")]
    assert "never" in row
    assert "0/1" in row


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "fedavg,fedpro"], "did you mean 'fedprox'?"),
        (["--methods", "fedlga", "--stragglers", "keep"], "--stragglers: method fedlga takes complete; got keep"),
        (["--stragglers", "kep"], "did you mean 'keep'?"),
        (["--methods", "fedavg", "--set", "mu=1"], "mu: there is no such field in the experiment or in any of fedavg"),
        (["--set", "method=fedavg"], "--set: method is what compare varies"),
        (["--seeds", "4-"], "--seeds: got '4-'"),
        (["--resume", "nowhere"], "--resume: 'nowhere' holds no comparison"),
    ],
)
def test_a_wrong_comparison(fedlga, tmp_path, words, message):
    code, _, err = fedlga("compare", *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_compare_goes_on_where_it_was_stopped(fedlga):
    words = ("--methods", "fedavg,scaffold", "--seeds", "0-1", "--rounds", 3)
    fedlga("compare", *FAST, *words, "--out", "whole")
    fedlga("compare", *FAST, *words, "--out", "broken")
    shutil.rmtree("broken/scaffold-keep/seed-1")  # as if it had been stopped before the last run
    Path("broken/fedavg-keep/seed-1/summary.json").unlink()  # killed after its last round, before its summary
    kept = Path("broken/fedavg-keep/seed-0/rounds.jsonl").stat().st_mtime_ns
    code, _, _ = fedlga("compare", "--resume", "broken")
    assert code == 0
    assert Path("broken/fedavg-keep/seed-0/rounds.jsonl").stat().st_mtime_ns == kept, "what is done is not done again"
    whole, again = (json.loads(Path(f"{name}/comparison.json").read_text())["table"] for name in ("whole", "broken"))
    for a, b in zip(whole, again, strict=True):
        assert {k: v for k, v in a.items() if not k.startswith("seconds")} == {
            k: v for k, v in b.items() if not k.startswith("seconds")
        }
    assert {row["seeds"] for row in again} == {2}


def test_compare_shows_whom_stragglers_cost(fedlga):
    words = ("--preset", "fleet", "--dataset", "digits", "--set", "devices=20", "--set", "cohort=5", "--rounds", 6)
    words += ("--stragglers", "wait,drop,keep,complete", "--seeds", "0", "--backend", "serial", "--set", "lr=0.1")
    code, out, err = fedlga("compare", *words, "--out", "c", "--audit")
    assert (code, err) == (0, "")
    (header,) = [line.split() for line in out.splitlines() if line.startswith("at the end")]
    assert header[-5:] == ["slow", "worst", "simulated", "s", "error"]
    assert max(map(len, out.splitlines())) <= 110
    table = json.loads(Path("c/comparison.json").read_text())["table"]
    assert [row["stragglers"] for row in table] == ["wait", "drop", "keep", "complete"]
    assert all(row["last_accuracy_slow"] is not None for row in table)
    assert table[0]["simulated_seconds"] == 5 * table[2]["simulated_seconds"]
    assert Path("c/comparison.png").read_bytes().startswith(b"\x89PNG")
    drawing = Path("c/comparison.svg").read_text()
    curves = list(csv.DictReader(Path("c/curves.csv").read_text().splitlines()))
    assert {row["arm"] for row in curves} == {f"fedavg {policy}" for policy in ("wait", "drop", "keep", "complete")}
    last = json.loads(Path("c/fedavg-complete/seed-0/rounds.jsonl").read_text().splitlines()[-1])
    assert (curves[-1]["round"], curves[-1]["accuracy"]) == ("6", f"{last['accuracy']:.7g}")
    assert float(curves[-1]["simulated_seconds"]) == pytest.approx(table[-1]["simulated_seconds"])
    assert all(word in drawing for word in ("<svg", "simulated seconds", "complete", "on the slow devices"))
