"""The run folder: what is written, that a run repeats, and that it goes on after a break as if nothing had happened."""

from __future__ import annotations

import dataclasses
import errno
import json
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import pytest
import torch

import fedlga
from fedlga import runs
from fedlga.experiment import Experiment, preset
from fedlga.models import make_model
from fedlga.settings import BadInput
from fedlga.tensors import load_tensors, save_tensors

SMALL = preset("digits").changed({"rounds": 6, "steps_per_epoch": 1, "lr": 0.1, "target": 0.3})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_tensors(folder / "model.safetensors")[0])


def without_seconds(folder: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def same_state(a: Path, b: Path) -> None:
    """Weights, all memories and all records are the same to the last bit."""
    assert without_seconds(a) == without_seconds(b)
    for pattern in ("model.safetensors", "checkpoint/server.safetensors", "checkpoint/devices/*.safetensors"):
        names = sorted(str(p.relative_to(a)) for p in a.glob(pattern))
        assert names == sorted(str(p.relative_to(b)) for p in b.glob(pattern))
        for name in names:
            (one, meta), (other, other_meta) = load_tensors(a / name), load_tensors(b / name)
            assert meta == other_meta
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_folder_holds_what_people_script_against(tmp_path):
    done = fedlga.run(SMALL.changed({"method": "scaffold"}), tmp_path / "run")
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "experiment.toml",
        "partition.json",
        "rounds.jsonl",
        "summary.json",
        "model.safetensors",
        "checkpoint",
    }
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    names = "method stragglers dataset seed rounds target rounds_to_target seconds_to_target "
    names += "simulated_seconds_to_target best_accuracy final_accuracy seconds_per_round"
    assert set(names.split()) <= summary.keys()
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    names = "round accuracy loss train_loss seconds simulated_seconds devices steps steps_asked"
    assert set(names.split()) <= line.keys()
    assert Experiment.load(tmp_path / "run" / "experiment.toml") == SMALL.changed({"method": "scaffold"}).resolved()
    assert done.summary["rounds"] == len(done.records) == 6
    reached = next(r for r in done.records if (r.accuracy or 0) >= 0.3)
    assert summary["rounds_to_target"] == reached.round
    assert summary["simulated_seconds_to_target"] == 5.0 * reached.round


def test_the_saved_model_is_the_joint_model(tmp_path):
    done = fedlga.run(SMALL, tmp_path / "run")
    model = make_model("mlp", (1, 8, 8), 10, seed=99)
    model.module.load_state_dict(weights(tmp_path / "run"))
    data = fedlga.simulation.load_data(SMALL)
    right, _ = fedlga.evaluation.Exam(model, data.test_images, data.test_labels).scored(model.vector.clone())
    assert int(right.sum()) / len(right) == done.records[-1].accuracy


def test_two_runs_of_one_seed_differ_in_nothing_but_seconds(tmp_path):
    for name in ("a", "b"):
        fedlga.run(SMALL.changed({"method": "feddyn"}), tmp_path / name)
    same_state(tmp_path / "a", tmp_path / "b")
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "b"))
    differing = {key for key in one if one[key] != other[key]}
    assert all("seconds" in key for key in differing)
    assert "simulated_seconds" not in differing


def test_another_seed_is_another_run(tmp_path):
    fedlga.run(SMALL, tmp_path / "a")
    fedlga.run(SMALL.changed({"seed": 1}), tmp_path / "b")
    assert without_seconds(tmp_path / "a") != without_seconds(tmp_path / "b")


@pytest.mark.parametrize("method", ["fedlga", "scaffold", "feddyn"])
@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, method, backend):
    experiment = SMALL.changed({"method": method})
    fedlga.run(experiment, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    begun = runs.recorded(experiment.changed({"backend": backend}), stopped)
    list(islice(begun, 2))
    begun.close()
    assert json.loads((stopped / "summary.json").read_text())["finished"] is False
    list(runs.recorded(runs.resumable(stopped, {"backend": "serial"}), stopped, resume=True))
    assert json.loads((stopped / "summary.json").read_text())["finished"] is True
    same_state(tmp_path / "whole", stopped)


def test_rounds_after_the_last_checkpoint_are_done_again(tmp_path):
    fedlga.run(SMALL, tmp_path / "whole")
    folder = tmp_path / "killed"
    begun = runs.recorded(SMALL, folder)
    list(islice(begun, 2))
    begun.close()  # a checkpoint of round 2, then two rounds more without one, and a line cut short
    lines = (tmp_path / "whole" / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join([*lines[:4], lines[4][:20]]))
    list(runs.recorded(runs.resumable(folder, {}), folder, resume=True))
    same_state(tmp_path / "whole", folder)


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    fedlga.run(SMALL, tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "experiment.toml").write_text(SMALL.resolved().to_toml())
    (folder / "rounds.jsonl").write_text((tmp_path / "whole" / "rounds.jsonl").read_text()[:50])
    list(runs.recorded(runs.resumable(folder, {}), folder, resume=True))
    same_state(tmp_path / "whole", folder)


def test_a_save_killed_between_its_renames_loses_nothing(tmp_path):
    fedlga.run(SMALL, tmp_path / "whole")
    folder = tmp_path / "killed"
    begun = runs.recorded(SMALL, folder)
    list(islice(begun, 2))
    begun.close()
    (folder / "checkpoint").rename(folder / "checkpoint.old")  # killed here, the new one not yet in place
    resumed = runs.recorded(runs.resumable(folder, {}), folder, resume=True)
    list(islice(resumed, 1))
    resumed.close()
    assert not (folder / "checkpoint.old").exists()
    list(runs.recorded(runs.resumable(folder, {}), folder, resume=True))
    same_state(tmp_path / "whole", folder)


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    fedlga.run(SMALL.changed({"rounds": 2}), tmp_path / "run")
    (tmp_path / "run" / "checkpoint" / "server.safetensors").write_bytes(b"not a checkpoint")
    with pytest.raises(BadInput, match=r"--resume: the checkpoint in .* is damaged"):
        list(runs.recorded(runs.resumable(tmp_path / "run", {"rounds": 4}), tmp_path / "run", resume=True))


def test_two_runs_cannot_share_a_folder(tmp_path):
    """Neither one that begins there while another is at work, nor one that would go on with it."""
    e = preset("digits").changed({"rounds": 5})
    first = runs.recorded(e, tmp_path / "r")
    next(first)
    for resume in (False, True):
        with pytest.raises(BadInput, match=r"another process is at work|already holds another run"):
            next(runs.recorded(e, tmp_path / "r", resume=resume))
    assert len(list(first)) == 4
    assert [r.round for r in runs.read(tmp_path / "r").records] == [1, 2, 3, 4, 5]


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert len(list(runs.recorded(preset("digits").changed({"rounds": 2}), tmp_path / "r"))) == 2


def test_a_process_killed_for_real_goes_on(tmp_path):
    experiment = SMALL.changed({"rounds": 120, "method": "scaffold"})
    fedlga.run(experiment, tmp_path / "whole")
    (tmp_path / "e.toml").write_text(experiment.to_toml())
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "fedlga.cli", "run", str(tmp_path / "e.toml"), "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_often_checkpointing(tmp_path))
    deadline = time.monotonic() + 60
    while not (folder / "checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert (folder / "experiment.toml").exists()
    list(runs.recorded(runs.resumable(folder, {}), folder, resume=True))
    same_state(tmp_path / "whole", folder)


def _often_checkpointing(tmp_path: Path) -> dict[str, str]:
    """An environment in which a checkpoint is made every round, so that a kill falls among them."""
    import os

    (tmp_path / "sitecustomize.py").write_text("import fedlga.runs\nfedlga.runs.CHECKPOINT_SECONDS = 0.0\n")
    return {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def test_a_finished_run_can_be_made_longer(tmp_path):
    fedlga.run(SMALL, tmp_path / "long")
    fedlga.run(SMALL.changed({"rounds": 3}), tmp_path / "short")
    longer = runs.resumable(tmp_path / "short", {"rounds": 6})
    list(runs.recorded(longer, tmp_path / "short", resume=True))
    same_state(tmp_path / "long", tmp_path / "short")


def test_resuming_a_finished_run_does_nothing(tmp_path):
    fedlga.run(SMALL, tmp_path / "run")
    before = without_seconds(tmp_path / "run")
    assert list(runs.recorded(runs.resumable(tmp_path / "run", {}), tmp_path / "run", resume=True)) == []
    assert without_seconds(tmp_path / "run") == before


def test_what_may_not_change_when_a_run_is_resumed(tmp_path):
    fedlga.run(SMALL, tmp_path / "run")
    with pytest.raises(BadInput, match="--resume: lr cannot change in the middle of a run"):
        runs.resumable(tmp_path / "run", {"lr": 0.2})
    with pytest.raises(BadInput, match="holds no run"):
        runs.resumable(tmp_path, {})


def test_a_folder_that_already_holds_a_run(tmp_path):
    fedlga.run(SMALL, tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_text()
    with pytest.raises(BadInput, match="already holds another run"):
        fedlga.run(SMALL.changed({"seed": 3}), tmp_path / "run")
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == before


def test_stop_at_target(tmp_path):
    done = fedlga.run(SMALL.changed({"stop_at_target": True, "rounds": 50}), tmp_path / "run")
    assert done.summary["rounds"] == done.summary["rounds_to_target"] < 50
    assert done.summary["finished"] is True
    assert len(list(fedlga.rounds(SMALL.changed({"stop_at_target": True})))) == done.summary["rounds"]


def test_rounds_without_an_evaluation(tmp_path):
    done = fedlga.run(SMALL.changed({"evaluate_every": 4}), tmp_path / "run")
    assert [r.round for r in done.records if r.accuracy is not None] == [4, 6]


def test_a_run_that_diverges_stops_and_says_so(tmp_path):
    # What the paper prints, to the letter: not-a-number within a few rounds.
    printed = SMALL.changed({"method": "fedlga", "scale": "printed", "lr": 0.05, "rounds": 60})
    done = fedlga.run(printed, tmp_path / "run")
    assert done.summary["diverged"] is True
    assert done.summary["rounds"] < 60
    assert "no longer finite" in (done.records[-1].note or "")
    assert done.records[-1].loss is None, "JSON knows no not-a-number"


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


def test_without_pandas_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match="pandas is not installed"):
        fedlga.frame([])


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


def test_importing_fedlga_does_not_import_torch():
    code = "import sys, fedlga; print('torch' in sys.modules, 'matplotlib' in sys.modules, 'rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False False\n"


def test_a_record_survives_json():
    record = next(iter(fedlga.rounds(SMALL)))
    assert fedlga.Record.from_dict(json.loads(json.dumps(record.as_dict()))) == record
    lost = dataclasses.replace(record, loss=float("nan"), scales={3: float("inf")})
    written = json.loads(json.dumps(lost.as_dict(), allow_nan=False))
    assert written["loss"] is None
    assert written["scales"] == {"3": None}


def test_local_momentum_decay_and_sizes_go_through_every_method():
    for method in ("fedavg", "fedprox", "fednova", "scaffold", "feddyn", "fedlga"):
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
        assert last.accuracy > 0.3, method
        assert last.lr == pytest.approx(0.02 * 0.95**7)


def test_a_checkpoint_of_an_earlier_version_is_not_misread(tmp_path):
    fedlga.run(SMALL.changed({"rounds": 2}), tmp_path / "run")
    file = tmp_path / "run" / "checkpoint" / "server.safetensors"
    vectors, metadata = load_tensors(file)
    save_tensors(file, vectors, {"round": metadata["round"]})
    with pytest.raises(BadInput, match="is of an earlier version; start the run again"):
        list(runs.recorded(runs.resumable(tmp_path / "run", {"rounds": 3}), tmp_path / "run", resume=True))
