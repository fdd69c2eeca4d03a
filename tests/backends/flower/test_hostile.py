"""A real SuperLink with two honest nodes and two hostile ones: the app in hostile_app/. No node may harm the run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from trials import LONGEST, log_of, read_logs, read_rounds, run_trial, start_app, stop_run, wait_until

pytestmark = pytest.mark.slow(seconds=90)

APP = Path(__file__).with_name("hostile_app")
REASONS = {
    "huge numbers": "delta is ",
    "no body": "it cannot be read (JSONDecodeError)",
    "a chunk often": "it would be ",
    "much": "it has more than the ",
    "another message": "it says that it answers another message",
    "a name": "it sent ",
    "codes": "it failed: it is broken  [31m",
    "length": "its records have more than ",
    "tests: not a number": "its evaluation says accuracy sum nan",
    "tests: all examples": "its evaluation claims a weight of 1.09951e+12",
    "tests: too good": "its evaluation says accuracy 1.25e+29",
}
ATTACKS = 8  # on training


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """Nodes 0 and 1 are honest, node 2 goes through all attacks, and node 3 says that it is device 0."""
    with run_trial(tmp_path_factory.mktemp("hostile") / "fleet", keys=4, nodes=2) as running:
        for number, config in ((2, "hostile=true"), (3, "claims=0")):
            running.register(number)
            running.start_node(number, FEDLGA_NODE_CONFIG=config)
        running.wait_for_nodes(4)
        yield running


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    folder = tmp_path_factory.mktemp("app") / "app"
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def attacked(trial, app, tmp_path_factory):
    """The folder of a run of our aggregator that goes on until every attack was met."""
    out = tmp_path_factory.mktemp("ours") / "attacked"
    process = start_app(trial, app, out, rounds=1000, evaluate_on="devices")

    def met():
        said = [record["refused"].get("2", "") for record in read_rounds(out)]
        return all(any(reason in why for why in said) for reason in REASONS.values())

    wait_until(lambda: met() or process.poll() is not None, trial)
    assert process.poll() is None, log_of(trial, out).read_text()[-5000:] + read_logs(trial)
    stop_run(trial, out)
    process.wait(timeout=LONGEST)
    return out


def test_no_attack_ends_the_run_or_reaches_the_model(attacked):
    records = read_rounds(attacked)
    assert len(records) >= ATTACKS
    assert all(sorted(record["used"]) in ([0, 1], [0], [1]) for record in records)
    assert sum(sorted(record["used"]) == [0, 1] for record in records) >= ATTACKS
    saved = load_file(attacked / "checkpoint" / "server.safetensors")
    assert all(torch.isfinite(vector).all() for vector in saved.values())
    assert saved["w"].abs().max() < 100


def test_what_a_stranger_said_is_cut_and_has_no_codes(attacked, trial):
    for record in read_rounds(attacked):
        for why in (*record["refused"].values(), *record["duplicates"].values(), record["note"] or ""):
            assert why.isprintable()
            assert len(why) <= 300
    assert (attacked / "rounds.jsonl").stat().st_size < 3000 * len(read_rounds(attacked))
    log = log_of(trial, attacked).read_text()
    assert "\x1b[2K" not in log
    assert not any(line.startswith("fedlga-done") for line in log.splitlines())


def test_what_hostile_devices_measured_is_not_believed(attacked):
    """Accuracy and loss are those of the two honest devices, which learn."""
    records = read_rounds(attacked)
    assert all(0 <= record["accuracy_worst"] <= record["accuracy"] <= 1 for record in records)
    assert all(0 < record["loss"] < 10 for record in records)
    assert all("2 of 4 devices tested the model" in record["note"] for record in records)


def test_in_flowers_own_loop_no_attack_ends_the_run_or_reaches_the_model(trial, app, tmp_path):
    """Three honest nodes move every weight by a hundredth in each round, from at most 0.5."""
    rounds = ATTACKS + 1
    process = start_app(trial, app, tmp_path / "loop", strategy="FedLGA", rounds=rounds)
    assert process.wait(timeout=LONGEST) == 0
    log = log_of(trial, tmp_path / "loop").read_text()
    largest = float(log.partition("largest weight ")[2].split()[0])
    assert largest < 0.5 + 0.01 * rounds + 0.001, log[-3000:]
    assert log.count("aggregate_train: Received 3 results and 1 failures") >= 4
    for reason in (
        "it cannot be read",
        "its records have more",
        "it says that it answers another",
        "it sent no ",
        "times as long",
    ):
        assert reason in log
    assert "\x1b[2K" not in log
    assert not any(line.startswith("fedlga-done") for line in log.splitlines())


def test_a_run_that_failed_is_not_reported_as_a_success(trial, app):
    """Nobody says how many steps it did: the run stops with a line that says what to report, and exit code 1."""
    command = [sys.executable, "-m", "fedlga", "run", "--app", str(app), "--superlink", "fleet"]
    command += ["--set", "strategy=FedLGA", "--set", "silent=true"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=trial.environment(), timeout=LONGEST, check=False, **pipes)
    assert done.returncode == 1, done.stdout
    assert 'no reply of round 1 can be used: a client reports "num-steps"' in done.stdout
    assert done.stdout.rstrip().endswith("finished:failed")


def test_a_node_that_says_it_is_another_device_is_turned_away_and_recorded(attacked):
    said = [record["duplicates"]["0"] for record in read_rounds(attacked) if record["duplicates"]]
    assert said
    assert said[0].endswith("says it is device 0, and was enrolled as device-3")
    assert not any(3 in record["devices"] for record in read_rounds(attacked))
