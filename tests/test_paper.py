"""The paper's items: what they run, that nothing is run twice, and what they say of it."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlga.paper import ITEMS, Work, claims, missing, papers_number, setting, table, verdict, works

NAMED = {"accuracy", "loss", "best", "epochs", "rho", "runtime", "tau-max", "devices", "cohort", "time", "audit"}


def fedlga(*words, cwd, **more):
    command = [sys.executable, "-m", "fedlga.cli", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False, **more)


def write_done(folder: Path, **summary):
    folder.mkdir(parents=True)
    base = {"seed": 0, "rounds": 8, "rounds_to_target": None, "versions": {}, "simulated_seconds": 9.0}
    (folder / "done.json").write_text(json.dumps({**base, **summary}))


def test_every_item_is_there():
    assert set(ITEMS) == NAMED
    assert all(item.title and item.says for item in ITEMS.values())


def test_items_share_their_runs(tmp_path):
    """Curves, bars and running times are one set of runs, which is also a point of every sweep."""
    chosen = setting("fashion-mnist")
    names = ["accuracy", "loss", "best", "runtime"]
    four = missing(works(names, chosen, [0, 1], tmp_path))
    assert len(four) == len(missing(works(["accuracy"], chosen, [0, 1], tmp_path))) == 12
    swept = missing(works([*names, "rho"], chosen, [0, 1], tmp_path))
    assert len(swept) == 12 + 2 * 12  # two other values of rho


@pytest.mark.parametrize("dataset", ["fashion-mnist", "cifar-10", "cifar-100"])
def test_the_papers_setting_is_exactly_configured(dataset):
    base = setting(dataset).base
    assert (base.devices, base.cohort, base.epochs, base.batch_size, base.rho) == (50, 10, 5, 10, 0.5)
    assert base.resolved().tau_max == 4
    wanted = {"fashion-mnist": ("mlp", 2, 0.65), "cifar-10": ("resnet20", 2, 0.55), "cifar-100": ("resnet20", 20, 0.4)}
    assert (base.model, base.classes_per_device, base.target) == wanted[dataset]
    assert setting(dataset).exact


@pytest.mark.parametrize("dataset", ["cifar-10", "cifar-100"])
def test_a_smaller_setting_says_so(dataset):
    chosen = setting(dataset, small=True)
    assert "NOT the paper's setting" in chosen.note
    assert not chosen.exact
    assert chosen.name.endswith("-small")


def test_tau_max_is_a_share_of_the_work(tmp_path):
    work = Work(ITEMS["tau-max"], setting("fashion-mnist"), [0], tmp_path)
    assert [e.resolved().tau_max for e, _ in work.all()] == [1, 2, 3, 4]
    assert work.points[-1].name == "base"


def test_the_papers_numbers():
    assert papers_number("accuracy", "fashion-mnist", "fedavg") == "116"
    assert papers_number("tau-max", "cifar-10", "fedlga", 0.4) == "157"
    assert papers_number("epochs", "fashion-mnist", "fedlga", 8) == "52"
    assert papers_number("rho", "fashion-mnist", "fedlga", 0.5) == "60"
    assert papers_number("rho", "fashion-mnist", "fedlga", 0.9) == "-"
    assert papers_number("cohort", "cifar-100", "fedlga", 25) == "78"
    assert papers_number("runtime", "cifar-100-small", "feddyn") == "12.7 a round, 2057 in all"


def test_a_claim_is_tested_on_paired_seeds(tmp_path):
    """FedLGA two rounds ahead of FedAvg on all five seeds; FedProx never gets there."""
    work = Work(ITEMS["accuracy"], setting("digits"), range(5), tmp_path)
    rounds = {"fedlga": 2, "fedavg": 4, "fedprox": None}
    for method, policy in work.kinds:
        for seed in work.seeds if method in rounds else []:
            done = work.folder(work.points[0], method, policy, seed)
            facts = {"method": method, "stragglers": policy, "best_accuracy": 0.5}
            write_done(done, seed=seed, rounds_to_target=rounds[method], **facts)
    said = [claim.sentence() for claim in claims(work)]
    assert (
        said[0] == "FedLGA needs fewer rounds than FedAvg: holds (-2.0, 95 % interval -2.0 to -2.0, p = 0.031, 5 seeds)"
    )
    assert "holds" in said[1]
    assert "5 not in time" in said[1]
    assert said[2].endswith("no runs to tell")
    rows = {row["method"]: row for row in table(work)}
    assert rows["FedLGA"]["rounds to target"] == "2 ± 0"
    assert rows["FedProx"]["rounds to target"] == "0 of 5 within 6"
    assert rows["FedDyn"]["rounds to target"] == "-"


def test_being_third_is_what_the_paper_claims(tmp_path):
    """A round of FedAvg and FedNova is shorter than FedLGA's, those of the others longer: just as the paper says."""
    work = Work(ITEMS["runtime"], setting("digits"), range(5), tmp_path)
    seconds = {"fedavg": 1.0, "fednova": 1.1, "fedlga": 1.2, "scaffold": 1.3, "feddyn": 1.4, "fedprox": 1.5}
    for method, policy in work.kinds:
        for seed in work.seeds:
            folder = work.folder(work.points[0], method, policy, seed)
            facts = {"method": method, "stragglers": policy, "seconds_per_round": seconds[method], "seconds": 9.0}
            write_done(folder, seed=seed, seconds_to_target=1.0 if method == "fedlga" else 2.0, **facts)
    made = claims(work)
    assert all(claim.found is not None and claim.found.shown for claim in made)
    assert verdict(made, 5) == "It holds here, in all 10 of its parts."
    assert verdict(made[:0], 5) == "There are no runs to tell."


def test_time_counts_only_as_far_as_both_ran(tmp_path):
    """Completing gives up after 100 s, waiting arrives after 300 s of 900: nothing can be said."""
    work = Work(ITEMS["time"], setting("digits"), range(5), tmp_path)
    facts = {"wait": (300.0, 900.0), "complete": (None, 100.0)}
    for policy, (reached, ran) in facts.items():
        for seed in work.seeds:
            folder = work.folder(work.points[0], "fedavg", policy, seed)
            more = {"simulated_seconds_to_target": reached, "simulated_seconds": ran, "stragglers": policy}
            write_done(folder, seed=seed, method="fedavg", **more)
    found = claims(work)[0].found
    assert found is not None
    assert found.verdict == "not shown"
    assert verdict(claims(work), 5).startswith("It is not shown here")


def test_a_damaged_end_of_a_run_is_made_again(tmp_path):
    work = Work(ITEMS["tau-max"], setting("digits"), [0], tmp_path)
    _, folder = work.all()[0]
    folder.mkdir(parents=True)
    (folder / "done.json").write_text("{")
    assert len(missing([work])) == 4


def test_quick_and_small_do_not_meet():
    assert setting("cifar-10", small=True).name != setting("cifar-10", quick=True).name


def test_all_items_end_to_end(tmp_path):
    """On small data: every file is there, and a second call does nothing."""
    done = fedlga("paper", "all", "--quick", "--dataset", "digits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in NAMED:
        for kind in ("md", "csv", "svg", "png", "pdf"):
            assert (tmp_path / "paper" / name / f"digits.{kind}").stat().st_size > 200, (name, kind)
    page = (tmp_path / "paper" / "rho" / "digits.md").read_text()
    assert "| FedLGA | complete | 0.1 |" in page
    assert "Does it hold here?" in page
    assert "`fedlga paper all --quick --dataset digits`" in page
    runs = sorted((tmp_path / "paper" / "runs").rglob("done.json"))
    before = {run: run.stat().st_mtime_ns for run in runs}
    again = fedlga("paper", "rho", "--quick", "--dataset", "digits", cwd=tmp_path)
    assert again.returncode == 0
    assert "0 runs to do" in again.stdout
    assert {run: run.stat().st_mtime_ns for run in runs} == before


def test_a_killed_item_goes_on_and_does_nothing_twice(tmp_path):
    """Killed for real in the middle; the end is the same as without."""
    words = ["paper", "accuracy", "--quick", "--dataset", "digits", "--seeds", "0"]
    runs = tmp_path / "paper" / "runs"
    process = subprocess.Popen([sys.executable, "-m", "fedlga.cli", *words], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while not ended(runs) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    before = {file: file.stat().st_mtime_ns for file in ended(runs)}
    assert 0 < len(before) < 6
    done = fedlga(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{len(before)} done before" in done.stdout
    assert {file: file.stat().st_mtime_ns for file in before} == before
    whole = fedlga(*words, "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0
    timed = ("seconds_to_target", "seconds_per_round")
    one, other = (_rows(tmp_path / out / "accuracy" / "digits.csv", timed) for out in ("paper", "whole"))
    assert one == other


def ended(runs: Path) -> list[Path]:
    """The runs that are done, of some that are going on: folders come and go there, which rglob does not bear."""
    return [Path(there) / "done.json" for there, _, files in os.walk(runs) if "done.json" in files]


def _rows(file: Path, without):
    return [{k: v for k, v in row.items() if k not in without} for row in csv.DictReader(file.read_text().splitlines())]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["paper", "acuracy"], "ITEM: there is no 'acuracy'; did you mean 'accuracy'?"),
        (["paper", "rho", "--dataset", "mnist"], "--dataset: there is no 'mnist'"),
        (["paper", "rho", "--small"], "--small: got it with fashion-mnist"),
        (["paper", "rho", "--seeds", "x"], "--seeds: got 'x'"),
        (["report", "nowhere"], "DIR: 'nowhere' is no folder"),
        (["report", "."], "DIR: '.' holds no run with a finished round"),
    ],
)
def test_a_wrong_call_costs_one_line(tmp_path, words, said):
    done = fedlga(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_another_experiment_in_the_folder_is_not_touched(tmp_path):
    work = Work(ITEMS["accuracy"], setting("digits"), [0], tmp_path / "paper")
    e, folder = work.all()[0]
    folder.mkdir(parents=True)
    text = e.changed({"lr": 0.123}).to_toml()
    (folder / "experiment.toml").write_text(text)
    done = fedlga("paper", "accuracy", "--dataset", "digits", "--seeds", "0", cwd=tmp_path)
    assert done.returncode == 2
    assert "holds another experiment" in done.stderr
    assert (folder / "experiment.toml").read_text() == text


def test_a_committed_result_regenerates(tmp_path):
    """`fedlga paper tau-max --quick --dataset digits --out results/paper-digits`, run again and compared.

    Another processor or compiler changes last bits, and with them a round or a few images.
    """
    committed = Path(__file__).parent.parent / "results" / "paper-digits" / "tau-max" / "digits.csv"
    done = fedlga("paper", "tau-max", "--quick", "--dataset", "digits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    before, now = (_rows(file, ()) for file in (committed, tmp_path / "paper" / "tau-max" / "digits.csv"))
    assert len(now) == len(before) == 8
    for old, new in zip(before, now, strict=True):
        assert [old[name] for name in ("point", "method", "seed")] == [
            new[name] for name in ("point", "method", "seed")
        ]
        assert float(new["best_accuracy"]) == pytest.approx(float(old["best_accuracy"]), abs=0.02)
        assert bool(new["rounds_to_target"]) == bool(old["rounds_to_target"])
