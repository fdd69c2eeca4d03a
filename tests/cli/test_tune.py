"""fedlga tune: the table, the exit codes, Ctrl-C and --resume; and compare with what was tuned."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from pathlib import Path

import pytest

from commands import ENDLESS, PATIENCE, Call, find_children, kill_group, start, wait_for_lines, wait_until
from fedlga.cli.tune import parse_grid, parse_grids
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment

TINY = (
    "--preset",
    "digits",
    "--set",
    "steps_per_epoch=1",
    "--set",
    "devices=5",
    "--set",
    "cohort=2",
    "--set",
    "lr=0.1",
)
SEARCH = (*TINY, "--rounds", "3", "--target", "0.3", "--grid", "lr=0.05,0.1", "--widen", "0")
SEEDS = ("--seeds", "100-101", "--held-out", "0-1")
ARMS = ("--arm", "fedavg keep", "--arm", "fedprox complete mu=0.5")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[Path, str]:
    """A search that is over: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("tuned")
    process = start("tune", *SEARCH, *SEEDS, *ARMS, "--workers", "1", "--out", "t", folder=folder)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (0, "")
    return folder / "t", out


def read_csv(file: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(file.read_text().splitlines()))


@pytest.mark.slow
def test_tune_prints_and_writes_its_tables(tuned):
    """Four points on the first seed, some on the second; then two arms on two held-out seeds."""
    folder, out = tuned
    lines = out.splitlines()
    assert lines[0] == "2 arms, 4 points, 2 seeds for the choice, 2 held out, into t"
    searched = [line for line in lines if line.startswith("search ")]
    assert len(searched) == len(list((folder / "search").rglob("summary.json"))) >= 4 + 2
    assert "search fedavg-keep lr=0.05 seed 100: 30% " in out
    assert len([line for line in lines if line.startswith("held-out ")]) == 4
    (header,) = [line for line in lines if line.startswith("arm ")]
    assert header.split() == ["arm", "accuracy", "s", "to", "30%"]
    rows = lines[lines.index(header) + 1 : lines.index(header) + 3]
    assert [row.split()[:2] for row in rows] == [["fedavg", "keep"], ["fedprox", "complete"]]
    assert "mu=0.5" in rows[1]
    assert "level" in rows[1]
    assert max(map(len, [header, *rows])) <= 80
    notes = lines[lines.index(header) + 3 : -1]
    assert max(map(len, notes)) <= 80
    assert " ".join(notes).startswith(
        "mean ± half of the 95 % interval (from three seeds on) over 2 held-out seeds; the settings were chosen on "
        "2 other seeds by mean accuracy over the last fifth of the simulated time ahead, behind: "
    )
    assert lines[-1] == "written: t: tuning.csv, choice.toml, held-out/paired.csv, held-out/comparison.csv"
    chosen = [row for row in read_csv(folder / "tuning.csv") if row["chosen"] == "True"]
    assert [row["arm"] for row in chosen] == ["fedavg-keep", "fedprox-complete-mu=0.5"]
    paired = read_csv(folder / "held-out" / "paired.csv")
    assert [row["settings"] for row in paired[:2]] == [chosen[0]["settings"], f"mu=0.5 {chosen[1]['settings']}"]
    assert {row["measure"] for row in paired} == {"closing_accuracy", "simulated_seconds_to_target"}


@pytest.mark.slow
def test_compare_with_what_was_tuned(fedlga, tuned):
    folder, _ = tuned
    code, out, err = fedlga("compare", "--tuned", folder, "--seeds", 7, "--rounds", 2, "--out", "c")
    assert (code, err) == (0, "")
    table = json.loads(Path("c/comparison.json").read_text())["table"]
    paired = read_csv(folder / "held-out" / "comparison.csv")
    assert [(row["method"], row["stragglers"], row["settings"]) for row in table] == [
        (row["method"], row["stragglers"], row["settings"]) for row in paired
    ]
    assert all(row["settings"] in out for row in table)
    for run in Path("c").rglob("experiment.toml"):
        e = Experiment.load(run)
        assert (e.seed, e.rounds, e.devices) == (7, 2, 5), "the base of the search, with what was changed"


@pytest.mark.slow
def test_compare_with_arms_of_their_own(fedlga):
    words = ("--arm", "fedprox keep mu=2", "--arm", "fedprox keep mu=3", "--methods", "fedavg")
    code, out, err = fedlga("compare", *TINY, "--rounds", 2, *words, "--seeds", "0", "--set", "mu=1", "--out", "c")
    assert (code, err) == (0, "")
    assert [line.split()[:3] for line in out.splitlines() if line.startswith("fedprox ")] == [
        ["fedprox", "keep", "mu=2"],
        ["fedprox", "keep", "mu=3"],
    ]
    assert {p.name for p in Path("c").iterdir() if p.is_dir()} == {
        *("fedavg-keep", "fedprox-keep-mu=2", "fedprox-keep-mu=3")
    }
    assert "mu = 2.0" in Path("c/fedprox-keep-mu=2/seed-0/experiment.toml").read_text()
    code, _, _ = fedlga("compare", "--resume", "c")
    assert code == 0


@pytest.mark.slow
def test_only_arms_are_compared_if_only_arms_are_named(fedlga):
    code, _, _ = fedlga("compare", *TINY, "--rounds", 1, "--arm", "fedprox mu=2", "--seeds", "0", "--out", "c")
    assert code == 0
    assert {p.name for p in Path("c").iterdir() if p.is_dir()} == {"fedprox-keep-mu=2"}


@pytest.mark.slow
def test_ctrl_c_then_resume(fedlga, tuned, tmp_path):
    """The runs of the search would never end. They stop after their round, and go on when there are fewer rounds."""
    words = ("--seeds", "100", "--held-out", "0", "--arm", "fedavg keep", "--widen", "0", "--workers", "2")
    grid = ("--grid", "lr=0.05,0.1")
    process = start("tune", *TINY, *words, *grid, "--rounds", ENDLESS, "--out", "t", folder=tmp_path)
    runs = [tmp_path / "t" / "search" / "fedavg-keep" / f"lr={lr}" / "seed-100" for lr in (0.05, 0.1)]
    for run in runs:
        wait_for_lines(run / "rounds.jsonl", 2)
    kill_group(process, signal.SIGINT)  # to all processes of the terminal, as a real Ctrl-C
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1] == "to go on: fedlga tune --resume t"
    done = [len((run / "rounds.jsonl").read_text().splitlines()) for run in runs]
    assert all((run / "checkpoint").is_dir() for run in runs)

    plan = (tmp_path / "t" / "tuning.toml").read_text()
    rounds = max(done) + 2
    (tmp_path / "t" / "tuning.toml").write_text(plan.replace(f"rounds = {ENDLESS}", f"rounds = {rounds}"))
    first_lines = [(run / "rounds.jsonl").read_bytes() for run in runs]
    code, out, err = fedlga("tune", "--resume", "t", "--workers", 1)
    assert (code, err) == (0, "")
    assert len([line for line in out.splitlines() if line.startswith(("search ", "held-out "))]) == 3
    for run, before in zip(runs, first_lines, strict=True):
        after = (run / "rounds.jsonl").read_bytes()
        assert after.startswith(before)
        assert after.count(b"\n") == rounds


@pytest.mark.slow
def test_ctrl_c_while_processes_start(tmp_path):
    """They import torch then. No process shows where it was."""
    words = ("--seeds", "100", "--held-out", "0", "--arm", "fedavg keep", "--grid", "lr=0.05,0.1", "--workers", "2")
    process = start("tune", *TINY, *words, "--rounds", ENDLESS, "--out", "t", folder=tmp_path)

    def import_torch() -> bool:
        return any("libtorch" in Path(f"/proc/{child}/maps").read_text() for child in find_children(process.pid))

    wait_until(import_torch, "a process has begun")
    kill_group(process, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1] == "to go on: fedlga tune --resume t"


def stop_in_tune(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_stop_before_anything_is_written(fedlga, monkeypatch, tmp_path):
    monkeypatch.setattr("fedlga.experiments.simulation.load_data", stop_in_tune)
    code, out, err = fedlga("tune", *SEARCH, "--stragglers", "keep", "--out", "t")
    assert (code, out, err) == (130, "stopped; nothing was written\n", "")
    assert list(tmp_path.iterdir()) == []


def test_resume_takes_no_other_options(fedlga, tmp_path):
    for words in (
        *(("--by", "accuracy"), ("--widen", 0), ("--grid", "lr=1"), ("--arm", "fedavg"), ("--seeds", "1")),
        *(("--held-out", "1"), ("--methods", "fedavg"), ("--stragglers", "keep"), ("--out", "x"), ("--rounds", 3)),
        *(("--preset", "digits"), ("--set", "lr=1")),
    ):
        code, out, err = fedlga("tune", "--resume", "t", *words)
        assert (code, out) == (2, "")
        assert err == "fedlga: --resume: got it with other options; the folder holds all of the search\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--grid", "lr"], "--grid: got 'lr'; it takes KEY=V,V,..., such as lr=0.01,0.03,0.1"),
        (["--grid", "lr="], "--grid: got 'lr='; it takes KEY=V,V,..., such as lr=0.01,0.03,0.1"),
        (["--grid", "=1"], "--grid: got '=1'; it takes KEY=V,V,..., such as lr=0.01,0.03,0.1"),
        (["--grid", "lr=0.1,,1"], "lr: got ''; it takes a number above 0"),
        (["--grid", "lr=0.1,0.1"], "--grid: lr=0.1 is there twice; each value is tried once"),
        (["--grid", "lr=0.1", "--grid", "lr=1"], "--grid: got lr twice; it takes all values of a setting at once"),
        (["--grid", "learning_rate=1,2"], "--grid: no arm has a setting 'learning_rate'"),
        (["--grid", "mu=1,2"], "--grid: no arm has a setting 'mu'"),
        (["--grid", "seed=1,2"], "--grid: seed is what tune varies itself; see fedlga tune --help"),
        ([], "--grid: got none; it takes a setting with its values, such as lr=0.01,0.03,0.1"),
        (["--grid", "lr=1,2", "--by", "beauty"], "--by: got 'beauty', and the target metric is accuracy; it takes"),
        (
            ["--grid", "lr=1,2", "--by", "rmse"],
            "--by: got 'rmse', and the target metric is accuracy; it takes accuracy,",
        ),
        (
            ["--grid", "lr=1,2", "--by", "loss"],
            "--by: got 'loss', and the target metric is accuracy; it takes accuracy, slow or time, or loss with --set "
            "metric=loss",
        ),
        (
            ["--grid", "lr=1,2", "--by", "accuracy", "--set", "metric=loss"],
            "--by: got 'accuracy', and the target metric is loss; it takes loss, slow or time, or accuracy with --set ",
        ),
        (
            ["--grid", "lr=1,2", "--by", "slow"],
            "--by: got 'slow', and no device of this fleet is always slow; it takes accuracy or time",
        ),
        (
            ["--grid", "lr=1,2", "--by", "slow", "--set", "metric=loss"],
            "--by: got 'slow', and no device of this fleet is always slow; it takes loss or time",
        ),
        (["--grid", "lr=1,2", "--widen", "-1"], "--widen: got -1; it takes a whole number of at least 0"),
        (["--grid", "lr=1,2", "--workers", "-1"], "workers: got -1; it takes a whole number of at least 0"),
        (["--grid", "lr=1,2", "--held-out", "4-"], "--held-out: got '4-'; it takes numbers and ranges"),
        (["--grid", "lr=1,2", "--seeds", "3,3"], "--seeds: got '3,3'; it takes at least one seed, each once"),
        (["--grid", "lr=1,2", "--seeds", "0-2"], "--held-out: seed 0 is one of --seeds; a seed that chose a setting"),
        (["--grid", "lr=1,2", "--held-out", "100"], "--held-out: seed 100 is one of --seeds; a seed that chose"),
        (["--grid", "lr=1,2", "--arm", "fedavg keep"], "--arm: fedavg-keep is there twice; each arm is compared once"),
        (["--grid", "lr=1,2", "--arm", "fedlga keep"], "stragglers: got 'keep'; method fedlga takes complete"),
        (["--grid", "lr=1,2", "--set", "seed=1"], "--set: seed is what tune varies itself; see fedlga tune --help"),
        (["--grid", "lr=1,2", "--backend", "pool"], "--set: backend is what tune varies itself"),
    ],
)
def test_a_wrong_search_gets_one_line(fedlga, tmp_path, words, message):
    code, out, err = fedlga("tune", *TINY, "--stragglers", "keep", "--out", "t", *words)
    assert (code, out) == (2, "")
    assert err.startswith(f"fedlga: {message}")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [], "nothing was written"


def test_a_search_without_arms(fedlga):
    code, _, err = fedlga("tune", *TINY, "--grid", "lr=1,2")
    assert (code, err) == (2, "fedlga: --arm: got none; it takes at least one, or --methods, or --stragglers\n")


def test_folders_that_do_not_fit(fedlga: Call):
    for words, option in ((("tune", "--resume"), "--resume"), (("compare", "--tuned"), "--tuned")):
        code, _, err = fedlga(*words, "nowhere")
        assert (code, err) == (
            2,
            f"fedlga: {option}: 'nowhere' holds no search; it takes the folder of fedlga tune\n",
        )
    Path("t").mkdir()
    Path("t/tuning.toml").write_text("")
    code, _, err = fedlga("tune", *SEARCH, "--stragglers", "keep", "--out", "t")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("fedlga: --out: 't' already holds another run; take another folder, or --resume it")


@pytest.mark.slow
def test_wrong_uses_of_what_was_tuned(fedlga, tuned, tmp_path):
    folder, _ = tuned
    copy = shutil.copytree(folder, tmp_path / "copy")
    for words, message in (
        (["--seeds", "0,101"], "--seeds: seed 101 chose the settings in"),
        (["--methods", "fedavg"], "--tuned: got it with another experiment or other arms; the folder holds them"),
        (["--arm", "fedavg"], "--tuned: got it with another experiment or other arms; the folder holds them"),
        (["--preset", "digits"], "--tuned: got it with another experiment or other arms; the folder holds them"),
    ):
        code, out, err = fedlga("compare", "--tuned", copy, *words, "--out", "c")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"fedlga: {message}")
    (copy / "choice.toml").write_text("arms = []")
    code, _, err = fedlga("compare", "--tuned", copy, "--out", "c")
    assert (code, err) == (2, f"fedlga: --tuned: the search in '{copy}' is not over; fedlga tune --resume {copy}\n")
    assert not Path("c").exists()


def test_the_values_of_a_grid():
    assert parse_grid("lr=0.01,1,3e-3") == ("lr", [0.01, 1, 0.003])
    assert parse_grid(" model =mlp, cnn") == ("model", ["mlp", "cnn"])
    assert parse_grid("fast=true,false") == ("fast", [True, False])
    assert parse_grids(["lr=1,2", "mu=3"]) == {"lr": [1, 2], "mu": [3]}
    with pytest.raises(BadInput, match="--grid: got lr twice"):
        parse_grids(["lr=1", "lr=2"])
