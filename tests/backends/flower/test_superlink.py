"""A real SuperLink and real SuperNodes on loopback, with TLS and keys; some of them are killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedlga.flower.deployment import init
from fedlga.flower.trial import Trial
from fedlga.methods import METHODS
from fedlga.runs import read

LONGEST = 240  # seconds that anything here may take
EXPERIMENT = ["--preset", "digits", "--set", "partition=iid", "--set", "devices=2", "--set", "cohort=2"]
EXPERIMENT += ["--set", "steps_per_epoch=2", "--method", "scaffold"]


PORTS = iter(range(10_000 + os.getpid() % 300 * 64, 32_000, 8))  # other workers of pytest have other numbers near ours


def free_ports() -> int:
    """The first of eight that nobody uses, and that are given to nobody else here, for some are taken later."""
    for first in PORTS:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 8):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no free ports")


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet") / "fleet"
    init(folder, nodes=5, port=free_ports())
    made = Trial(folder)
    said: list[str] = []
    made.up(2, [], said.append)
    assert said[0].endswith("TLS and node authentication on")
    yield made
    made.down()
    assert made.running() == {}


def fedlga(trial, folder, *words, code=0):
    command = [sys.executable, "-m", "fedlga.cli", *words]
    done = subprocess.run(
        command, cwd=folder, env=trial.environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr + logs(trial)
    return done


def logs(trial):
    return "".join(f"\n== {log.name}\n{log.read_text()[-2000:]}" for log in (trial.folder / "logs").glob("*.log"))


def wait(condition, trial, seconds=LONGEST):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, logs(trial)
        time.sleep(0.1)


def rounds_in(folder):
    file = folder / "rounds.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


def start_app(trial, app, out, **config):
    """`flwr run` on an app; its process, which ends with the run."""
    values = " ".join(f"{name}={json.dumps(value)}" for name, value in {"out": str(out), **config}.items())
    command = [
        str(Path(sys.executable).with_name("flwr")),
        "run",
        str(app),
        "fleet",
        "--stream",
        "--run-config",
        values,
    ]
    with (trial.folder / "logs" / f"{Path(out).name}.log").open("wb") as log:
        return subprocess.Popen(command, env=trial.environment(), stdout=log, stderr=subprocess.STDOUT)


def test_a_superlink_gives_what_serial_gives_and_survives_being_killed(trial, tmp_path):
    """Scaffold over TLS. In the middle the SuperLink is killed and started again with its database, and a node is
    stopped and started: the run goes on, to the same weights.
    """
    fedlga(trial, tmp_path, "run", *EXPERIMENT, "--rounds", "3", "--out", "serial")
    command = [sys.executable, "-m", "fedlga.cli", "run", *EXPERIMENT, "--rounds", "3", "--superlink", "fleet"]
    process = subprocess.Popen(
        [*command, "--out", "r"],
        cwd=tmp_path,
        env=trial.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait(lambda: len(rounds_in(tmp_path / "r")) >= 2 or process.poll() is not None, trial)
    trial.stop("node-0")
    trial.stop("superlink", kill=True)
    _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 2
    assert err.startswith("fedlga: --superlink: ")
    assert len(err.strip().splitlines()) == 1
    held = {node: sorted((trial.folder / "nodes" / node / "state").glob("*/*.safetensors")) for node in ("0", "1")}
    assert all(held.values()), "what a device remembers lies with it"
    trial.start_superlink()
    trial.start_node(0)
    trial.wait_for_nodes(2)
    done = fedlga(trial, tmp_path, "run", "--resume", "r", "--superlink", "fleet")
    assert "round 3/3" in done.stdout
    models = [load_file(tmp_path / name / "model.safetensors") for name in ("serial", "r")]
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    expected, found = (read(tmp_path / name).records for name in ("serial", "r"))
    assert [(r.devices, r.steps, r.used, r.accuracy) for r in expected] == [
        (r.devices, r.steps, r.used, r.accuracy) for r in found
    ]
    crossed = [path.name for path in (tmp_path / "r" / "checkpoint" / "devices").iterdir()]
    assert crossed == ["0.safetensors"]
    assert list(load_file(tmp_path / "r" / "checkpoint" / "devices" / "0.safetensors")) == [
        "flower.counted",
        "flower.name",
    ]


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_all_methods_on_a_superlink_give_what_serial_gives(method, trial, tmp_path):
    """In CI it is Scaffold, above, and all six on Ray."""
    words = [*EXPERIMENT[:-1], method, "--rounds", "3"]
    fedlga(trial, tmp_path, "run", *words, "--out", "serial")
    fedlga(trial, tmp_path, "run", *words, "--superlink", "fleet", "--out", "r")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("serial", "r")]
    assert models[0] == models[1]
    serial, found = (read(tmp_path / name).records for name in ("serial", "r"))
    assert [replace(r, seconds=0.0) for r in found] == [replace(r, seconds=0.0) for r in serial]
    assert any(r.slow for r in serial)


BAD_CLIENT = """
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
    delta = reply.content["vectors"]["delta"].numpy().copy()
    numbers = dict(reply.content["numbers"])
    device, round = context.node_config["device"], numbers["round"]
    if device == 1 and round == 0:
        delta[3] = np.nan
    elif device == 1:
        numbers["round"] = 7
    elif device == 2 and round == 0:
        delta = delta[:-1]
    elif device == 2:
        numbers["steps"] = 51
    vectors = ArrayRecord({"delta": Array(delta)})
    return Message(RecordDict({"vectors": vectors, "numbers": MetricRecord(numbers)}), reply_to=message)
"""


def test_no_bad_update_reaches_the_model(trial, tmp_path):
    app = tmp_path / "app"
    shutil.copytree(trial.folder / "app", app)
    (app / "fleet_app" / "client.py").write_text(BAD_CLIENT)
    if "node-2" not in trial.running():
        trial.register(2)
        trial.start_node(2)
    trial.wait_for_nodes(3)
    settings = {"rounds": 2, "devices": 3, "cohort": 3, "deadline": 20.0, "grace": 40.0}
    assert start_app(trial, app, tmp_path / "bad", **settings).wait(timeout=LONGEST) == 0
    first, second = read(tmp_path / "bad").records
    assert (read(tmp_path / "bad").experiment.dataset, read(tmp_path / "bad").experiment.model) == ("own", "own")
    assert first.refused == {
        1: "delta holds what is not a number",
        2: "delta is 4809 of float32, and the model 4810 of float32",
    }
    assert second.refused == {
        1: "it answers round 7, and was asked for 1",
        2: "it claims 51 steps, and was asked for 50",
    }
    assert first.used == second.used == [0]
    assert all(torch.isfinite(v).all() for v in load_file(tmp_path / "bad" / "model.safetensors").values())


def test_an_app_of_somebodys_own_with_our_strategy(trial, tmp_path):
    """The example app, deployed; in simulation: test_flower_ray.py."""
    example = Path(__file__).parents[1] / "examples" / "flower-app"
    shutil.copytree(example, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    command = [str(Path(sys.executable).with_name("flwr")), "run", str(tmp_path / "app"), "fleet", "--stream"]
    command += ["--run-config", "num-server-rounds=1"]
    done = subprocess.run(
        command, env=trial.environment(), capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout + logs(trial)
    assert re.search(r"Received [23] results and 0 failures", done.stdout), done.stdout
    assert "'completed':" in done.stdout
    assert "accuracy after 1 rounds: 0." in done.stdout


def test_strangers_are_turned_away(trial):
    """A node whose key nobody registered, and one that does not speak TLS."""
    before = trial.online()
    trial.start_node(4)
    command = [str(Path(sys.executable).with_name("flower-supernode")), "--insecure", "--max-retries", "1"]
    command += ["--superlink", f"127.0.0.1:{trial.port}", "--port", str(trial.port + 6)]
    with (trial.folder / "logs" / "plain.log").open("wb") as said:  # a pipe would stay open in what it starts
        plain = subprocess.run(command, env=trial.environment(), stdout=said, stderr=said, timeout=LONGEST, check=False)
    assert plain.returncode != 0
    log = trial.folder / "logs" / "node-4.log"
    wait(lambda: "Failed to activate SuperNode" in log.read_text(), trial)
    assert "SuperNode ID" not in log.read_text()
    assert trial.online() <= before
    trial.stop("node-4", kill=True)


def test_a_node_that_comes_late_is_slow_and_is_killed(trial, tmp_path):
    """Node 1 joins after the first round, sends what it has at the deadline, and is killed in the middle of a round."""
    out = tmp_path / "run"
    trial.stop("node-1", "node-2")
    settings = {"rounds": 60, "devices": 2, "cohort": 2, "deadline": 1.5, "grace": 12.0, "method": "scaffold"}
    process = start_app(trial, trial.folder / "app", out, **settings)

    def after(condition):
        wait(lambda: any(map(condition, rounds_in(out))) or process.poll() is not None, trial)
        assert process.poll() is None, (trial.folder / "logs" / "run.log").read_text() + logs(trial)

    after(lambda record: record["used"] == [0])
    trial.start_node(1, pace=0.2)
    after(lambda record: 1 in record["used"])
    seen = len(rounds_in(out))
    wait(lambda: busy(trial, 1), trial)
    trial.stop("node-1", kill=True)
    after(lambda record: record["round"] > seen and record["absent"] == [1] and record["used"] == [0])
    killed = len(rounds_in(out))
    after(lambda record: record["round"] > killed and record["used"] == [0])
    trial.flwr("stop", run_id(trial, "run"), "fleet")
    process.wait(timeout=LONGEST)
    records = rounds_in(out)
    assert "1 of 2 devices are not connected" in records[0]["note"]
    assert any(1 in r["slow"] and 1 in r["used"] for r in records)
    told = [dict(zip(r["devices"], zip(r["steps"], r["steps_asked"], strict=True), strict=True)) for r in records]
    worked = [done[1] for done in told if 1 in done and done[1][0]]
    assert all(0 < steps < asked and steps <= 8 for steps, asked in worked)  # 1.5 s at 0.2 s a step
    assert all(torch.isfinite(v).all() for v in load_file(out / "checkpoint" / "server.safetensors").values())


@pytest.mark.long
def test_a_node_that_was_killed_comes_back(trial, tmp_path):
    """It cannot say goodbye: the SuperLink lets it in again when it has noticed, a minute later."""
    if "node-1" not in trial.running():
        trial.start_node(1)
    trial.wait_for_nodes(2)
    settings = {"rounds": 100, "devices": 2, "cohort": 2, "deadline": 5.0, "grace": 20.0, "method": "scaffold"}
    process = start_app(trial, trial.folder / "app", tmp_path / "back", **settings)

    def after(condition):
        wait(lambda: any(map(condition, rounds_in(tmp_path / "back"))) or process.poll() is not None, trial)
        assert process.poll() is None, (trial.folder / "logs" / "back.log").read_text() + logs(trial)

    after(lambda record: 1 in record["used"])
    trial.stop("node-1", kill=True)
    seen = len(rounds_in(tmp_path / "back"))
    after(lambda record: record["round"] > seen + 1 and record["used"] == [0])
    seen = len(rounds_in(tmp_path / "back"))
    trial.start_node(1)
    after(lambda record: record["round"] > seen and 1 in record["used"])
    trial.flwr("stop", run_id(trial, "back"), "fleet")
    process.wait(timeout=LONGEST)


def busy(trial, node):
    """Whether a node's app is at work."""
    group = trial.running()[f"node-{node}"]
    found = subprocess.run(["pgrep", "-g", str(group), "-f", "flwr-clientapp"], capture_output=True, check=False)
    return found.returncode == 0


def run_id(trial, name):
    text = (trial.folder / "logs" / f"{name}.log").read_text()
    return text.partition("Successfully started run ")[2].split()[0]


def test_down_ends_what_up_started_and_nothing_else(tmp_path):
    bystander = subprocess.Popen(["sleep", "100"], start_new_session=True)
    folder = tmp_path / "fleet"
    init(folder, nodes=1, port=free_ports())
    made = Trial(folder)
    made.start_superlink()
    (folder / "up.json").write_text(
        json.dumps({**json.loads((folder / "up.json").read_text()), "node-9": {"pid": bystander.pid, "since": 1}})
    )
    assert list(made.running()) == ["superlink"]
    assert made.down() == ["superlink"]
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", made.port), timeout=2)
