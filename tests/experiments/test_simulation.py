"""From an experiment to a federation: what `rounds` yields, and what it leaves alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

import fedlga
from fedlga.core.round import run_rounds
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

SMALL = preset("digits").changed({"rounds": 6, "steps_per_epoch": 1, "lr": 0.1, "target": 0.3})


def test_absent_devices_and_traces_show_in_the_records(tmp_path):
    (tmp_path / "trace.csv").write_text("round,device,epochs\n" + "".join(f"1,{d},{d % 3}\n" for d in range(20)))
    traced = SMALL.changed({"fleet": "trace", "trace": str(tmp_path / "trace.csv"), "method": "fedavg", "rounds": 2})
    first, second = fedlga.rounds(traced)
    assert all(steps == device % 3 for device, steps in zip(first.devices, first.steps, strict=True))
    assert first.absent == [d for d in first.devices if d % 3 == 0]
    assert set(first.slow) == {d for d in first.devices if d % 3}
    assert second.slow == second.absent == []


def test_the_api_in_ten_lines():
    experiment = fedlga.Experiment(method="fedlga", dataset="digits", rounds=3, lr=0.1, backend="serial")
    records = list(fedlga.rounds(experiment))
    frame = fedlga.frame(records)
    assert list(frame.index) == [1, 2, 3]
    assert frame["accuracy"].tolist() == [r.accuracy for r in records]


@pytest.mark.slow
def test_a_script_without_a_main_guard_may_use_the_pool(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import fedlga\n"
        "e = fedlga.preset('digits').changed({'backend': 'pool', 'rounds': 2})\n"
        "print([r.round for r in fedlga.rounds(e)])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "[1, 2]\n"
    assert done.stderr == ""


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "scaffold", "feddyn", "fedlga"])
def test_local_momentum_decay_and_sizes_go_through_every_method(method):
    experiment = SMALL.changed(
        {
            "method": method,
            "momentum": 0.9,
            "lr": 0.02,
            "lr_decay": 0.05,
            "partition": "dirichlet",
            "averaging": "examples",
        }
    )
    last = list(fedlga.rounds(experiment.changed({"rounds": 8, "epochs": 8})))[-1]
    assert last.accuracy is not None
    assert last.accuracy > 0.3
    assert last.lr == pytest.approx(0.02 * 0.95**7)


@pytest.fixture
def three_threads():
    """Let torch have three threads here, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.usefixtures("three_threads")
def test_between_rounds_torch_has_the_threads_it_had(backend):
    """The caller's loop may compute something large; rounds themselves use one thread."""
    rounds = fedlga.rounds(SMALL.changed({"backend": backend, "rounds": 3}))
    assert torch.get_num_threads() == 3, "before the first round"
    assert [(record.round, torch.get_num_threads()) for record in rounds] == [(1, 3), (2, 3), (3, 3)]
    assert torch.get_num_threads() == 3, "after the last round"


@pytest.mark.usefixtures("three_threads")
def test_a_loop_that_stops_early_leaves_the_threads_alone():
    for _ in fedlga.rounds(SMALL):
        break
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_a_number_of_threads_set_between_rounds_stays():
    rounds = fedlga.rounds(SMALL)
    next(rounds)
    torch.set_num_threads(2)
    next(rounds)
    assert torch.get_num_threads() == 2
    rounds.close()


def test_the_gradient_is_recorded_in_evaluated_rounds_and_changes_nothing_else(tmp_path):
    plain = SMALL.changed({"evaluate_every": 2})
    weights = []
    for name, experiment in (("plain", plain), ("recorded", plain.changed({"record": "gradient"}))):
        run = fedlga.run(experiment, tmp_path / name)
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
        known = [r.squared_gradient is not None and r.train_objective is not None for r in run.records]
        assert known == [name == "recorded" and r.round % 2 == 0 for r in run.records]
    assert weights[0] == weights[1]
    first, *_, last = [r for r in fedlga.read(tmp_path / "recorded").records if r.train_objective is not None]
    assert last.train_objective < first.train_objective
    summary = json.loads((tmp_path / "recorded" / "summary.json").read_text())
    assert summary["final_train_objective"] == last.train_objective
    assert "final_train_objective" not in (tmp_path / "plain" / "summary.json").read_text()
    assert "record" not in (tmp_path / "plain" / "experiment.toml").read_text()


@pytest.mark.parametrize("record", ["objective", "gradient"])
def test_the_recorded_objective_is_the_mean_loss_of_the_devices(record):
    """All devices in one, evaluated as test data would be: the same loss by another way."""
    experiment = SMALL.changed({"rounds": 1, "record": record, "averaging": "examples"})
    with simulate(experiment) as simulation:
        _, made = next(iter(run_rounds(simulation.federation, simulation.start, 1)))
        train = simulation.split.train
        images, labels = train.piece(0, len(train))
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(simulation.model.call(images), labels)
    assert made.train_objective == pytest.approx(float(loss), rel=1e-5)
    assert (made.squared_gradient is None) == (record == "objective")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"record": "hessian"}, "record: got 'hessian'; it takes one of objective, gradient"),
        ({"record": "gradient", "batch_norm": "device"}, "record: got 'gradient' with batch_norm 'device'"),
    ],
)
def test_what_cannot_be_recorded_is_refused(changes, line):
    with pytest.raises(fedlga.BadInput, match=line):
        SMALL.changed(changes)
