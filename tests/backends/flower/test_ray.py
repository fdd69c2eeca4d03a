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
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.flower_server import read_experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_run
from fedlga.experiments.run import load_for_resume, run, run_and_record
from fedlga.learning.task import load_task
from hard_experiment import OWN_TASKS, PAIRS, REFUSED_PAIRS, hard_experiment, task_experiment
from trials import BIN, EXAMPLE_APP, LONGEST, free_ports, listens, quicken

pytestmark = pytest.mark.slow(seconds=95)


@pytest.mark.parametrize("strategy", ["FedLGA", "FedBuff"])
def test_four_lines_make_a_flower_app_complete_what_slow_devices_started(tmp_path, strategy):
    """The example app in Flower's own simulation, by `flwr run`; and only four of its lines are fedlga's.

    With FedBuff in place of FedLGA, two of the four nodes make a step.
    """
    shutil.copytree(EXAMPLE_APP, tmp_path / "app", ignore=shutil.ignore_patterns("__pycache__"))
    server = tmp_path / "app" / "unequal" / "server_app.py"
    if strategy == "FedBuff":
        asynchronous = server.read_text().replace("FedLGA(", "FedBuff(buffer=2, stragglers='complete', ")
        server.write_text(asynchronous.replace("import FedLGA", "import FedBuff"))
    text = "".join((EXAMPLE_APP / "unequal" / name).read_text() for name in ("server_app.py", "client_app.py"))
    ours = [line for line in text.splitlines() if "FedLGA(" in line or "fedlga.flower" in line or "num-steps" in line]
    assert len(ours) == 4
    port = free_ports()
    (tmp_path / "flower").mkdir()
    (tmp_path / "flower" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = quicken({**os.environ, "FLWR_TELEMETRY_ENABLED": "0"})
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
    if strategy == "FedLGA":
        assert done.stdout.count("completed 2 of 4 updates") == 2, done.stdout
    else:
        assert "Starting FedBuff strategy" in done.stdout
        assert "of 4 updates" not in done.stdout, "no step waits for all four"
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
    """Return a folder with a run of every method, and of every task, method and policy, on the same Ray processes."""
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
@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_tasks_on_ray_give_what_serial_gives_to_the_last_bit(method, policy, task, runs_on_ray, tmp_path):
    """All that a config takes of six methods and four policies. Serial and pool: tests/backends/test_agree.py."""
    serial = run(task_experiment(task, method, policy), tmp_path / "serial")
    assert any(record.slow for record in serial.records), "no device was slow, so the policy did nothing"
    check_same(serial, read_run(runs_on_ray / f"{task}-{method}-{policy}"))


@pytest.mark.parametrize("task", OWN_TASKS)
def test_runs_on_ray_differ_wherever_method_or_policy_do(task, runs_on_ray):
    """Otherwise two backends that both ignore the policy would agree, too."""
    models = {
        (runs_on_ray / f"{task}-{m}-{policy}" / "model.safetensors").read_bytes(): (m, policy) for m, policy in PAIRS
    }
    same = {("fedavg", "complete"), ("fedlga", "complete")}  # FedLGA is averaging with complete
    assert len(models) == len(PAIRS) - len(same) + 1


def test_every_method_goes_with_every_policy_but_fedlga():
    assert REFUSED_PAIRS == [("fedlga", "wait"), ("fedlga", "drop"), ("fedlga", "keep")]
    assert len(names_of("method")) * len(names_of("policy")) == len(PAIRS) + len(REFUSED_PAIRS) == 24


@pytest.mark.parametrize("task", OWN_TASKS)
@pytest.mark.parametrize(("method", "policy"), REFUSED_PAIRS)
def test_other_policies_are_refused_in_the_same_words_everywhere(method, policy, task):
    """Here, and where an experiment arrives as text: on a node, and as the configuration of a Flower app."""
    words = f"stragglers: got '{policy}'; method {method} takes complete (it is averaging with complete: for another"
    words += " policy use method fedavg)"
    experiment = task_experiment(task, method)
    for backend in ("serial", "pool", "flower"):
        with pytest.raises(BadInput) as refused:
            experiment.changed({"backend": backend, "stragglers": policy})
        assert str(refused.value) == words
    text = experiment.changed({"stragglers": "complete"}).to_toml()
    with pytest.raises(BadInput) as refused:
        Experiment.from_toml(text.replace('stragglers = "complete"', f'stragglers = "{policy}"'))
    assert str(refused.value) == words
    with pytest.raises(BadInput) as refused:
        read_experiment({"method": method, "stragglers": policy}, load_task(OWN_TASKS[task]))
    assert str(refused.value) == words


def check_same(serial, ray):
    """Compare all tensors that two runs leave, the aggregator's memory among them, and all fields of their records."""
    for name in ("model.safetensors", "checkpoint/server.safetensors"):
        expected, tensors = (load_file(folder / name) for folder in (serial.folder, ray.folder))
        assert expected.keys() == tensors.keys()
        assert all(torch.equal(expected[key], tensors[key]) for key in expected)
    assert [replace(record, seconds=0.0) for record in ray.records] == [
        replace(record, seconds=0.0) for record in serial.records
    ]
