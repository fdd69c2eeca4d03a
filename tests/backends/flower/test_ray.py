"""Flower's own simulation, on real Ray processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedlga.methods import METHODS
from fedlga.runs import read, run
from on_ray import hard
from test_flower_fleet import free_ports

LONGEST = 400  # seconds that anything here may take


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    script = Path(__file__).with_name("on_ray.py")
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}  # where devices keep their memory
    command = [sys.executable, str(script), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_on_ray_give_what_serial_gives_to_the_last_bit(method, played, tmp_path):
    serial, ray = run(hard(method), tmp_path / "serial"), read(played / method)
    weights, found = (load_file(folder / "model.safetensors") for folder in (serial.folder, ray.folder))
    assert all(torch.equal(weights[name], found[name]) for name in weights)
    assert [replace(record, seconds=0.0) for record in ray.records] == [
        replace(record, seconds=0.0) for record in serial.records
    ]


def test_a_run_that_was_stopped_ends_as_if_nothing_had_been(tmp_path):
    """The command itself, with devices that remember: three rounds are two on Ray, and one more in this process."""
    words = ["--preset", "digits", "--method", "scaffold", "--backend", "flower", "--set", "devices=5"]
    words += ["--set", "cohort=2", "--set", "steps_per_epoch=2"]
    fedlga(tmp_path, "run", *words, "--backend", "serial", "--rounds", "3", "--out", "whole")
    fedlga(tmp_path, "run", *words, "--rounds", "2", "--out", "parts")
    fedlga(tmp_path, "run", "--resume", "parts", "--rounds", "3", "--backend", "serial")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert models[0] == models[1]


def test_a_client_that_fails_fails_the_run(tmp_path):
    """Left to itself, Flower's simulation ends with 0 and an untrained model."""
    (tmp_path / "mine.py").write_text(
        "import os\nfrom torch import nn\n"
        "def net(shape, classes):\n"
        "    if 'RAY_JOB_ID' in os.environ: raise RuntimeError('this device has no heart')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    words = ["--preset", "digits", "--backend", "flower", "--set", "model=mine:net", "--rounds", "2", "--out", "r"]
    done = fedlga(tmp_path, "run", *words, code=2)
    assert "failed" in done.stderr
    assert "no heart" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_three_lines_make_a_flower_app_complete_what_slow_devices_started(tmp_path):
    """The example app in Flower's own simulation, by `flwr run`; and that three lines are all that differs."""
    example = Path(__file__).parents[1] / "examples" / "flower-app"
    shutil.copytree(example, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    text = "".join((example / "unequal" / name).read_text() for name in ("server_app.py", "client_app.py"))
    ours = [line for line in text.splitlines() if "FedLGA(" in line or "fedlga.flower" in line or "num-steps" in line]
    assert len(ours) == 3
    port, home = free_ports(), Path(sys.executable).parent
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = {**os.environ, "PATH": f"{home}{os.pathsep}{os.environ['PATH']}", "FLWR_TELEMETRY_ENABLED": "0"}
    environment["RAY_worker_niceness"] = "0"  # or the devices wait behind whatever else runs here
    environment |= {"FLWR_HOME": str(tmp_path / "flower"), "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}
    superlink = [str(home / "flower-superlink"), "--insecure", "--simulation", "--port", str(port)]
    superlink += ["--disable-runtime-dependency-installation"]
    with (tmp_path / "superlink.log").open("wb") as log:
        process = subprocess.Popen(superlink, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while not answers(port):
            assert process.poll() is None, (tmp_path / "superlink.log").read_text()
            time.sleep(0.2)
        command = [str(home / "flwr"), "run", str(tmp_path / "app"), "here", "--stream", "--run-config"]
        command += ["num-server-rounds=2", "--federation-config", "num-supernodes=4 client-resources-num-cpus=1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "superlink.log").read_text()
    assert done.stdout.count("completed 2 of 4 updates") == 2, done.stdout
    assert "accuracy after 2 rounds: 0." in done.stdout


def answers(port):
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


def fedlga(folder, *words, code=0):
    command = [sys.executable, "-m", "fedlga.cli", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done
