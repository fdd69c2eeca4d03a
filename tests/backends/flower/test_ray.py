"""Flower's own simulation, on real Ray processes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import on_ray
from fedlga.core.registry import names_of
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_run
from fedlga.experiments.run import load_for_resume, run, run_and_record
from hard_experiment import OWN_TASKS, hard_experiment, task_experiment
from trials import BIN, EXAMPLE_APP, LONGEST, free_ports, listens, quicken

pytestmark = pytest.mark.slow(seconds=70)


def test_three_lines_make_a_flower_app_complete_what_slow_devices_started(tmp_path):
    """The example app in Flower's own simulation, by `flwr run`; and only three of its lines are fedlga's."""
    shutil.copytree(EXAMPLE_APP, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    text = "".join((EXAMPLE_APP / "unequal" / name).read_text() for name in ("server_app.py", "client_app.py"))
    ours = [line for line in text.splitlines() if "FedLGA(" in line or "fedlga.flower" in line or "num-steps" in line]
    assert len(ours) == 3
    port = free_ports()
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = quicken({**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}, fork=False)
    environment["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    environment["RAY_worker_niceness"] = "0"  # at Ray's 15 the devices starve on a busy machine
    environment["FLWR_HOME"] = str(tmp_path / "flower")
    superlink = [str(BIN / "flower-superlink"), "--insecure", "--simulation", "--port", str(port)]
    superlink += ["--disable-runtime-dependency-installation"]
    with (tmp_path / "superlink.log").open("wb") as log:
        process = subprocess.Popen(superlink, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while not listens(port):
            assert process.poll() is None, (tmp_path / "superlink.log").read_text()
            time.sleep(0.1)
        command = [str(BIN / "flwr"), "run", str(tmp_path / "app"), "here", "--stream", "--run-config"]
        command += ["num-server-rounds=2", "--federation-config"]
        command += ["num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=1"]  # four nodes in one process
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "superlink.log").read_text()
    assert done.stdout.count("completed 2 of 4 updates") == 2, done.stdout
    assert "accuracy after 2 rounds: 0." in done.stdout


def test_a_run_that_was_stopped_gives_the_same_as_one_that_was_not(tmp_path):
    """The command itself, with devices that remember: two rounds on Ray, and the third in this process."""
    settings = {"devices": 5, "cohort": 2, "steps_per_epoch": 2, "method": "scaffold"}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    run_fedlga(tmp_path, "--preset", "digits", *words, *ONE_WORKER, "--rounds", "2", "--out", "parts")
    experiment = load_for_resume(tmp_path / "parts", {"rounds": 3, "backend": "serial"})
    assert len(list(run_and_record(experiment, tmp_path / "parts", resume=True))) == 1
    run(preset("digits").changed({**settings, "rounds": 3}), tmp_path / "whole")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert models[0] == models[1]


def test_a_client_that_fails_makes_the_run_fail(tmp_path):
    """Flower's simulation by itself ends with 0 and an untrained model."""
    (tmp_path / "mine.py").write_text(
        "import os\nfrom torch import nn\n"
        "def net(shape, classes):\n"
        "    if 'RAY_JOB_ID' in os.environ: raise RuntimeError('this device has no heart')\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    words = ["--preset", "digits", "--set", "model=mine:net", "--rounds", "2", "--out", "r"]
    done = run_fedlga(tmp_path, *words, *ONE_WORKER, code=2)
    assert "failed" in done.stderr
    assert "no heart" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


ONE_WORKER = ["--backend", "flower", "--set", "workers=1"]  # a second process would only cost its imports


def run_fedlga(folder, *words, code=0):
    command = [sys.executable, "-m", "fedlga", "run", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


IN_PYTHON = """
import numpy as np
import fedlga
from torch import nn

x = np.random.default_rng(0).normal(size=(100, 3))
task = fedlga.Task(lambda: nn.Linear(3, 1), (x, x @ [1.0, 2.0, 3.0]))
for backend in ("serial", "pool", "flower"):
    experiment = fedlga.Experiment(rounds=2, devices=4, backend=backend, workers=1)
    print(repr([record.rmse for record in fedlga.rounds(experiment, task=task)]))
"""


def test_a_task_made_in_python_gives_the_same_on_every_backend(tmp_path):
    """A script without a main guard: its functions are in no module that another process could import."""
    (tmp_path / "script.py").write_text(IN_PYTHON)
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    results = done.stdout.splitlines()
    assert len(results) == 3
    assert results[0] == results[1] == results[2]


@pytest.fixture(scope="module")
def runs_on_ray(tmp_path_factory):
    """Return a folder with a run of every method, all on the same two Ray processes."""
    folder = tmp_path_factory.mktemp("ray")
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}  # where devices keep their memory
    command = [sys.executable, on_ray.__file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("method", names_of("method"))
def test_all_methods_on_ray_give_what_serial_gives_to_the_last_bit(method, runs_on_ray, tmp_path):
    check_same(run(hard_experiment(method), tmp_path / "serial"), read_run(runs_on_ray / method))


@pytest.mark.parametrize("task", OWN_TASKS)
@pytest.mark.parametrize("method", names_of("method"))
def test_tasks_on_ray_give_what_serial_gives_to_the_last_bit(method, task, runs_on_ray, tmp_path):
    serial = run(task_experiment(task, method), tmp_path / "serial")
    check_same(serial, read_run(runs_on_ray / f"{task}-{method}"))


def check_same(serial, ray):
    expected, weights = (load_file(folder / "model.safetensors") for folder in (serial.folder, ray.folder))
    assert all(torch.equal(expected[name], weights[name]) for name in expected)
    assert [replace(record, seconds=0.0) for record in ray.records] == [
        replace(record, seconds=0.0) for record in serial.records
    ]
