"""A real SuperLink and real SuperNodes on loopback, with TLS and keys; some of them are killed.

All tests here share them, in the order of the file. What is sent byte by byte: test_wire.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedlga.backends.flower.deployment import init
from fedlga.core.registry import names_of
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_run
from fedlga.experiments.run import run
from fedlga.learning.task import load_task
from hard_experiment import OWN_TASKS, task_experiment
from trials import (
    BIN,
    EXAMPLE_APP,
    LONGEST,
    find_processes,
    log_of,
    read_logs,
    read_rounds,
    run_trial,
    start_app,
    stop_run,
    wait_until,
)

pytestmark = pytest.mark.slow(seconds=120)

# Without a deadline: the aggregator waits for every reply, and at the start until all devices are there.
SETTINGS = {"partition": "iid", "devices": 2, "cohort": 2, "steps_per_epoch": 2, "grace": 600.0}


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with run_trial(tmp_path_factory.mktemp("fleet") / "fleet", keys=5, nodes=2) as running:
        yield running


def make_experiment(method: str, rounds: int) -> Experiment:
    return preset("digits").changed({**SETTINGS, "method": method, "rounds": rounds})


def words_for(method: str, rounds: int, **more: Any) -> list[str]:
    """Return the same experiment for the command line, with other settings if given."""
    changes = [word for name, value in {**SETTINGS, **more}.items() for word in ("--set", f"{name}={value}")]
    return ["--preset", "digits", "--method", method, "--rounds", str(rounds), *changes]


def start_fedlga(trial, folder, *words):
    command = [sys.executable, "-m", "fedlga", "run", *words, "--superlink", "fleet"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=trial.environment(), **pipes)


def run_fedlga(trial, folder, *words):
    process = start_fedlga(trial, folder, *words)
    out, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, out + err + read_logs(trial)
    return out


@pytest.mark.parametrize("stop_old_run", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_superlink_gives_what_serial_gives_and_survives_being_killed(stop_old_run, trial, tmp_path):
    """Scaffold over TLS. In the middle the SuperLink is killed and started again with its database, and a node is
    stopped and started: the run continues, to the same weights.

    The nodes wait for the rest of a message of the old run until that is stopped, or Flower has missed its aggregator,
    up to a minute later.
    """
    process = start_fedlga(trial, tmp_path, *words_for("scaffold", 1000), "--out", "r")
    wait_until(lambda: len(read_rounds(tmp_path / "r")) >= 2 or process.poll() is not None, trial)
    assert process.poll() is None, process.communicate()[1] + read_logs(trial)
    [aggregator] = find_processes(trial, "superlink", "flwr-serverapp")
    os.kill(aggregator, signal.SIGSTOP)  # or it would go on without node 0
    trial.stop("node-0")
    trial.stop("superlink", kill=True)
    _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 2
    assert err.startswith("fedlga: --superlink: ")
    assert len(err.strip().splitlines()) == 1
    assert not set("╭─╰") & set(err)  # Flower's frames
    held = {node: sorted((trial.folder / "nodes" / node / "state").glob("*/*.safetensors")) for node in ("0", "1")}
    assert all(held.values()), "a device's memory is on its own node"
    trial.start_superlink()
    trial.start_node(0)  # the run waits for it
    if stop_old_run:
        log = (trial.folder / "logs" / "superlink.log").read_text()
        trial.flwr("stop", re.findall(r"Created run (\d+)", log)[-1], "fleet")
    rounds = len(read_rounds(tmp_path / "r")) + 1  # however far it came, one more
    assert f"round {rounds}/{rounds}" in run_fedlga(trial, tmp_path, "--resume", "r", "--rounds", str(rounds))
    serial = run(make_experiment("scaffold", rounds), tmp_path / "serial")
    expected, weights = (load_file(tmp_path / name / "model.safetensors") for name in ("serial", "r"))
    assert all(torch.equal(expected[name], weights[name]) for name in expected)
    assert [(r.devices, r.steps, r.used, r.accuracy) for r in serial.records] == [
        (r.devices, r.steps, r.used, r.accuracy) for r in read_run(tmp_path / "r").records
    ]
    checkpoint = tmp_path / "r" / "checkpoint" / "devices"
    assert [path.name for path in checkpoint.iterdir()] == ["0.safetensors"]
    assert list(load_file(checkpoint / "0.safetensors")) == ["flower.counted", "flower.keys", "flower.name"]


def test_one_device_process_serves_all_rounds_and_is_replaced_when_killed(trial, tmp_path):
    """The messages of the run before, of another app, were served by another: apps do not share a process."""
    words = words_for("fedavg", 1000, grace=1, fleet="real", deadline=2)
    process = start_fedlga(trial, tmp_path, *words, "--out", "r")

    def find_device():
        return find_processes(trial, "node-0", "fedlga.backends.flower.device_process")

    def wait_for_use_after(round):
        def used():
            return any(record["round"] > round and 0 in record["used"] for record in read_rounds(tmp_path / "r"))

        wait_until(lambda: used() or process.poll() is not None, trial)
        assert process.poll() is None, process.communicate()[1] + read_logs(trial)
        return len(read_rounds(tmp_path / "r"))

    seen = wait_for_use_after(0)
    [first] = find_device()
    seen = wait_for_use_after(seen)
    assert find_device() == [first]
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: find_device() not in ([], [first]), trial)
    wait_for_use_after(len(read_rounds(tmp_path / "r")))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST)


BROKEN = {
    "at import": ('raise RuntimeError("a typo at import")', "a typo at import"),
    "by an exit": (
        "from flwr.clientapp import ClientApp\napp = ClientApp()\n"
        "@app.query()\ndef who(message, context):\n    raise SystemExit('it gave up')",
        "it gave up",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_an_app_that_fails_is_told_and_its_next_version_runs(fault, trial, tmp_path):
    """Both versions have the same package, and are run by the same node."""
    lines, words = BROKEN[fault]
    settings = {"rounds": 2, "devices": 2, "cohort": 2, "deadline": 600.0, "grace": 600.0, "method": "fedavg"}
    for version, change in (("broken", lines), ("mended", "")):
        app, out = tmp_path / version / "app", tmp_path / version / "run"
        shutil.copytree(trial.folder / "app", app)
        client = app / "fleet_app" / "client.py"
        client.write_text(f"{client.read_text()}\n{change}\n")
        process = start_app(trial, app, out, **settings)
        process.wait(timeout=LONGEST)
        log = log_of(trial, out).read_text()
        assert (words in log) is bool(change), log + read_logs(trial)
    assert len(read_rounds(tmp_path / "mended" / "run")) == 2


@pytest.mark.long
@pytest.mark.parametrize("method", names_of("method"))
def test_all_methods_on_a_superlink_give_what_serial_gives(method, trial, tmp_path):
    """`make test` has Scaffold, above, and all six on Ray."""
    serial = run(make_experiment(method, 3), tmp_path / "serial")
    run_fedlga(trial, tmp_path, *words_for(method, 3), "--out", "r")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("serial", "r")]
    assert models[0] == models[1]
    records = read_run(tmp_path / "r").records
    assert [replace(r, seconds=0.0) for r in records] == [replace(r, seconds=0.0) for r in serial.records]
    assert any(r.slow for r in serial.records)


def test_a_buffer_on_a_superlink_gives_what_serial_gives(trial, tmp_path):
    """In simulated time, with real nodes: assignments of one step begin from weights of different steps."""
    changes = {"schedule": "buffered", "buffer": 1, "stragglers": "wait", "fleet": "speeds", "deadline": 5.0}
    changes["speeds"] = "[1.0,0.3]"
    serial = run(make_experiment("fedavg", 3).changed({**changes, "speeds": [1.0, 0.3]}), tmp_path / "serial")
    run_fedlga(trial, tmp_path, *words_for("fedavg", 3, **changes), "--out", "r")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("serial", "r")]
    assert models[0] == models[1]
    records = read_run(tmp_path / "r").records
    assert [replace(r, seconds=0.0) for r in records] == [replace(r, seconds=0.0) for r in serial.records]
    assert serial.records[-1].simulated_seconds > 0


def test_the_first_of_two_nodes_to_report_counts(trial, tmp_path):
    """Real devices, over-selected: two are asked, one is needed."""
    changes = {"fleet": "real", "deadline": 60.0, "cohort": 1, "schedule": "over-selection", "factor": 2.0}
    run_fedlga(trial, tmp_path, *words_for("fedavg", 2, **changes), "--stragglers", "wait", "--out", "r")
    records = read_run(tmp_path / "r").records
    assert [len(r.used) for r in records] == [1, 1]
    assert sorted(records[0].devices) == [0, 1]


def test_a_buffer_of_real_nodes(trial, tmp_path):
    """Every report makes a step; whoever reported is asked again at once, and the other's report is a step old."""
    changes = {"fleet": "real", "deadline": 60.0, "schedule": "buffered", "buffer": 1, "at_work": 2}
    run_fedlga(trial, tmp_path, *words_for("fedavg", 4, **changes), "--stragglers", "wait", "--out", "r")
    records = read_run(tmp_path / "r").records
    assert [len(r.used) for r in records] == [1] * 4
    assert {device for r in records for device in r.used} == {0, 1}
    assert any(r.staleness for r in records)
    assert read_run(tmp_path / "r").summary["best_accuracy"] > 0.2


def test_a_task_of_ones_own_on_a_superlink_gives_what_serial_gives(trial, tmp_path):
    """The file is sent to the nodes; each takes the part that it would have in a simulation."""
    settings = {"devices": 2, "cohort": 2, "partition": "iid", "rounds": 2, "grace": 600.0}
    experiment = task_experiment("regression", "scaffold").changed(settings)
    serial = run(experiment, tmp_path / "serial")
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    out = run_fedlga(trial, tmp_path, OWN_TASKS["regression"], "--method", "scaffold", *words, "--out", "r")
    assert "mae" in out
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("serial", "r")]
    assert models[0] == models[1]
    records = read_run(tmp_path / "r").records
    assert [replace(r, seconds=0.0) for r in records] == [replace(r, seconds=0.0) for r in serial.records]


@pytest.mark.parametrize(
    ("example", "metric", "better", "target"),
    [("regression", "rmse", "lower", 0.8), ("lora", "accuracy", "higher", None)],
)
def test_a_task_deploys_as_it_is(example, metric, better, target, trial, tmp_path):
    """What `fedlga fleet init --task` writes, on the nodes of another fleet: real devices, with a deadline."""
    task = EXAMPLE_APP.parent / "own-data" / f"{example}.py"
    settings = {**load_task(str(task)).experiment, "partition": "iid"}  # lora.py has data of ten devices, for two nodes
    init(tmp_path / "fleet", nodes=2, port=20_000, task=task, settings=settings)
    assert (tmp_path / "fleet" / "app" / "fleet_app" / "task.py").read_text() == task.read_text()
    process = start_app(trial, tmp_path / "fleet" / "app", tmp_path / "r", rounds=2, deadline=60.0)
    assert process.wait(timeout=LONGEST) == 0, read_logs(trial)
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())
    assert (summary["metric"], summary["better"], summary["rounds"]) == (metric, better, 2)
    assert summary.get("target") == target
    records = read_run(tmp_path / "r").records
    first, second = (record.metrics[metric] for record in records)
    assert (second > first) == (better == "higher")
    assert second != first
    assert [sorted(record.devices) for record in records] == [[0, 1], [0, 1]]


def test_unknown_nodes_are_refused(trial):
    """A node whose key is not registered, and one that does not use TLS."""
    before = trial.online()
    trial.start_node(4)
    command = [str(BIN / "flower-supernode"), "--insecure", "--max-retries", "1"]
    command += ["--superlink", f"127.0.0.1:{trial.port}", "--port", str(trial.port + 8)]
    with (trial.folder / "logs" / "plain.log").open("wb") as log:  # a pipe would stay open in what it starts
        plain = subprocess.run(command, env=trial.environment(), stdout=log, stderr=log, timeout=LONGEST, check=False)
    assert plain.returncode != 0
    log = trial.folder / "logs" / "node-4.log"
    wait_until(lambda: "Failed to activate SuperNode" in log.read_text(), trial)
    assert "SuperNode ID" not in log.read_text()
    assert trial.online() <= before
    trial.stop("node-4", kill=True)


def test_an_app_of_a_users_own_with_our_strategy(trial, tmp_path):
    """The example app, deployed. In simulation: test_ray.py."""
    shutil.copytree(EXAMPLE_APP, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    command = [str(BIN / "flwr"), "run", str(tmp_path / "app"), "fleet", "--stream"]
    command += ["--run-config", "num-server-rounds=1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(command, env=trial.environment(), timeout=LONGEST, check=False, **pipes)
    assert done.returncode == 0, done.stdout + read_logs(trial)
    assert re.search(r"Received [23] results and 0 failures", done.stdout), done.stdout
    assert "'completed':" in done.stdout
    assert "accuracy after 1 rounds: 0." in done.stdout


# The client of device 2 does wrong, in four ways, one after the other.
WRONG_CLIENT = """
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fedlga.flower import client_app
from .task import model, train_data

honest = client_app(model, train_data)
app = ClientApp()


@app.query()
def who(message, context):
    return honest(message, context)


@app.train()
def train(message, context):
    reply = honest(message, context)
    if context.node_config["device"] != 2:
        return reply
    vectors = {name: array.numpy().copy() for name, array in reply.content["vectors"].items()}
    numbers = dict(reply.content["numbers"])
    with (Path(context.node_config["state-dir"]).parent / "replies").open("a+") as count:
        count.write(".")
        sent = count.tell() % 4
    if sent == 1:
        vectors["delta"][3] = np.nan
    elif sent == 2:
        vectors["delta"] = vectors["delta"][:-1]
    elif sent == 3:
        numbers["round"] = 7777
    else:
        numbers["steps"] = 51
    arrays = ArrayRecord({name: Array(vector) for name, vector in vectors.items()})
    return Message(RecordDict({"vectors": arrays, "numbers": MetricRecord(numbers)}), reply_to=message)
"""
REASONS = [
    "delta holds what is not a number",
    "delta is 4809 of float32, and the model 4810 of float32",
    "it replies to round 7777, and was asked for ",
    "it claims 51 steps, and was asked for 50",
]


@dataclass(frozen=True)
class Story:
    """A run of a user's own app on three nodes, and after how many rounds the test did what."""

    out: Path
    records: list[dict[str, Any]]
    most_steps: int  # that node 1 can do before the deadline
    started: int  # when node 1 was started
    killed: int  # when it was killed


@pytest.fixture(scope="module")
def story(trial, tmp_path_factory):
    """Node 0 is honest, node 2 does wrong. Node 1 joins late, is slow, and is killed in the middle of a round.

    The run starts without node 1 after `grace` seconds, and goes on without it as long after a deadline. The seconds
    are in proportion to how long a command of Flower's takes here and now, so that good replies are in time.
    """
    folder = tmp_path_factory.mktemp("story")
    app, out = folder / "app", folder / "run"
    shutil.copytree(trial.folder / "app", app)
    (app / "fleet_app" / "client.py").write_text(WRONG_CLIENT)
    trial.stop("node-1")
    trial.register(2)
    trial.start_node(2)
    wait_until(lambda: "SuperNode ID" in (trial.folder / "logs" / "node-2.log").read_text(), trial)
    before = time.monotonic()
    assert trial.online() == 2
    grace = max(3.0, 3 * (time.monotonic() - before))
    deadline = grace / 2
    settings = {"rounds": 1000, "devices": 3, "cohort": 3, "deadline": deadline, "grace": grace, "method": "scaffold"}
    process = start_app(trial, app, out, **settings)

    def wait_for_record(condition):
        wait_until(lambda: any(map(condition, read_rounds(out))) or process.poll() is not None, trial)
        assert process.poll() is None, log_of(trial, out).read_text() + read_logs(trial)
        return len(read_rounds(out))

    started = wait_for_record(lambda record: record["used"] == [0])
    trial.start_node(1, pace=deadline / 10)
    joined = wait_for_record(lambda record: 1 in record["used"])
    node = trial.folder / "logs" / "node-1.log"
    wait_until(lambda: node.read_text().count("Receiving: train") > node.read_text().count("Sending: train"), trial)
    trial.stop("node-1", kill=True)
    killed = wait_for_record(lambda record: record["round"] > joined and 1 in record["absent"])
    wait_for_record(lambda record: record["round"] > killed and record["used"] == [0])
    for reason in REASONS:
        wait_for_record(lambda record, reason=reason: reason in record["refused"].get("2", ""))
    stop_run(trial, out)
    process.wait(timeout=LONGEST)
    return Story(out, read_rounds(out), 10, started, killed)


def test_a_run_starts_without_a_node_that_comes_late(story):
    assert re.search(r"[12] of 3 devices are not connected", story.records[0]["note"])  # node 2 has just been started
    assert not any(1 in record["devices"] for record in story.records[: story.started])
    assert any(1 in record["used"] for record in story.records)


def test_a_slow_node_sends_what_it_has_at_the_deadline(story):
    assert any(1 in record["slow"] and 1 in record["used"] for record in story.records)
    for r in story.records:
        work = dict(zip(r["devices"], zip(r["steps"], r["steps_asked"], strict=True), strict=True))
        steps, asked = work.get(1, (0, 50))
        assert asked == 50
        assert steps <= story.most_steps


def test_a_run_continues_without_a_node_that_was_killed(story):
    assert any(1 in record["absent"] and record["used"] == [0] for record in story.records[: story.killed])
    last = story.records[story.killed :]
    assert last
    assert not any(1 in record["used"] for record in last)
    assert any(record["used"] == [0] for record in last)


def test_no_wrong_update_reaches_the_model(story):
    assert not any(2 in record["used"] for record in story.records)
    refused = [(r["round"], r["refused"]["2"]) for r in story.records if r["refused"]]
    for reason in REASONS:
        assert any(reason in why for _, why in refused)
    for round, why in refused:
        number = round - 1 if "7777" in why else ""
        assert why in {f"{reason}{number}" for reason in REASONS}
    assert all(list(record["refused"]) in ([], ["2"]) for record in story.records)
    experiment = read_run(story.out).experiment
    assert (experiment.dataset, experiment.model) == ("own", "own")
    assert all(torch.isfinite(v).all() for v in load_file(story.out / "checkpoint" / "server.safetensors").values())


@pytest.mark.long
def test_a_node_that_was_killed_comes_back(trial, tmp_path):
    """It cannot sign off: the SuperLink lets it in again when it has missed it, a minute later."""
    if "node-1" not in trial.running():
        trial.start_node(1)
    trial.wait_for_nodes(2)
    out = tmp_path / "back"
    settings = {"rounds": 1000, "devices": 2, "cohort": 2, "deadline": 5.0, "grace": 20.0, "method": "scaffold"}
    process = start_app(trial, trial.folder / "app", out, **settings)

    def wait_for_record(condition):
        wait_until(lambda: any(map(condition, read_rounds(out))) or process.poll() is not None, trial)
        assert process.poll() is None, log_of(trial, out).read_text() + read_logs(trial)
        return len(read_rounds(out))

    done = wait_for_record(lambda record: 1 in record["used"])
    trial.stop("node-1", kill=True)
    done = wait_for_record(lambda record: record["round"] > done + 1 and record["used"] == [0])
    trial.start_node(1)
    wait_for_record(lambda record: record["round"] > done and 1 in record["used"])
    stop_run(trial, out)
    process.wait(timeout=LONGEST)


def test_down_stops_what_up_started_and_nothing_else(trial):
    """The last test here. Another process, under the name of a node and a number that was used again, goes on."""
    bystander = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        file = trial.folder / "up.json"
        started = json.loads(file.read_text())
        file.write_text(json.dumps({**started, "node-9": {"pid": bystander.pid, "since": 1}}))
        names = sorted(trial.running())
        assert {"node-0", "superlink"} <= set(names)
        assert sorted(trial.down()) == names
        assert trial.running() == {}
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", trial.port), timeout=2)
