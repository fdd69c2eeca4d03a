"""What goes wrong on the way: one line, exit 1, and a folder that can be continued to the same bits."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import fedlga
from fedlga.core.settings import BadInput, Stopped
from fedlga.core.tensors import save_tensors
from fedlga.experiments import run as module
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_records
from fedlga.experiments.run import load_for_resume, run_and_record
from fedlga.learning.failures import TaskFailed
from run_folders import assert_same_state

SMALL = preset("digits").changed({"rounds": 8, "steps_per_epoch": 1, "lr": 0.1, "method": "scaffold"})


def go_on(folder: Path) -> None:
    list(run_and_record(load_for_resume(folder, {}), folder, resume=True))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Path:
    return fedlga.run(SMALL, tmp_path_factory.mktemp("undisturbed") / "run").folder


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("name", ["sync", "save_checkpoint"])
def test_a_disk_that_refuses_stops_the_run_and_the_folder_goes_on(name, number, undisturbed, tmp_path, monkeypatch):
    """After round 4 nothing can be written any more; then the disk is mended."""
    folder, work = tmp_path / "run", getattr(module, name)
    broken: list[int] = []

    def refuse(*words):
        if broken:
            raise OSError(number, os.strerror(number))
        return work(*words)

    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(module, name, refuse)
    with pytest.raises(Stopped, match=r"cannot write to .*; once that is mended, fedlga run --resume") as caught:
        for record in run_and_record(SMALL, folder):
            broken += [4] if record.round == 4 else []
    assert os.strerror(number) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(read_records(folder)) == 5
    monkeypatch.undo()
    go_on(folder)
    assert_same_state(undisturbed, folder)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [4000, 15_000])
def test_a_file_that_cannot_grow_is_one_line(limit, tmp_path):
    """A real process that may write so many bytes to a file: rounds.jsonl stops in the middle of a line, or the
    checkpoint cannot be written.
    """
    words = ["--preset", "digits", "--method", "fedavg", "--rounds", "8", "--set", "steps_per_epoch=1"]
    process = subprocess.run(
        [sys.executable, "-m", "fedlga", "run", *words, "--set", "lr=0.1", "--out", "run"],
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 1, process.stderr
    assert process.stderr.startswith("fedlga: cannot write to 'run' (")
    assert process.stderr.count("\n") == 1
    assert "too large" in process.stderr
    go_on(tmp_path / "run")
    fedlga.run(SMALL.changed({"method": "fedavg"}), tmp_path / "whole")
    assert_same_state(tmp_path / "whole", tmp_path / "run")


def test_a_folder_that_is_removed_stops_the_run_and_does_not_come_back(tmp_path):
    with pytest.raises(Stopped, match=r"cannot write to .* \(No such file or directory\)"):
        for record in run_and_record(SMALL, tmp_path / "run"):
            if record.round == 3:
                shutil.rmtree(tmp_path / "run")
    assert not (tmp_path / "run").exists()


FRAGILE = """
from pathlib import Path
from torch import nn

class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        if self.training and Path({flag!r}).exists():
            raise RuntimeError("CUDA error: an illegal memory access\\nwas encountered")
        return self.layer(x.flatten(1))

def net(shape, classes):
    return Fragile()
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_an_error_of_torch_is_kept_from_harming_what_was_done(backend, tmp_path, monkeypatch):
    """In the middle of the run, where the work is done."""
    flag = tmp_path / "flag"
    (tmp_path / f"fragile_{backend}.py").write_text(FRAGILE.format(flag=str(flag)))
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = SMALL.changed({"model": f"fragile_{backend}:net", "backend": backend})
    fedlga.run(experiment, tmp_path / "whole")
    with pytest.raises((TaskFailed, BadInput), match=r"model\(\) failed .*an illegal memory access"):
        for record in run_and_record(experiment, tmp_path / "run"):
            if record.round == 4:
                flag.touch()
    assert len(read_records(tmp_path / "run")) == 4
    assert (tmp_path / "run" / "checkpoint" / "manifest.json").exists(), "a checkpoint on the way out"
    assert (tmp_path / "run" / "summary.json").exists()
    flag.unlink()
    go_on(tmp_path / "run")
    assert_same_state(tmp_path / "whole", tmp_path / "run")


def test_a_run_that_diverges_keeps_the_last_weights_that_are_numbers(tmp_path):
    printed = SMALL.changed(
        {"method": "fedlga", "scale": "printed", "outlier_bound": 0, "lr": 0.05, "rounds": 60, "steps_per_epoch": 2}
    )
    done = fedlga.run(printed, tmp_path / "run")
    assert done.records[-1].diverged
    model = load_file(tmp_path / "run" / "model.safetensors")
    checkpoint = load_file(tmp_path / "run" / "checkpoint" / "server.safetensors")
    assert all(torch.isfinite(tensor).all() for tensor in (*model.values(), checkpoint["w"]))
    before = fedlga.run(printed.changed({"rounds": len(done.records) - 1}), tmp_path / "before")
    assert not before.summary["diverged"]
    assert all(torch.equal(model[name], v) for name, v in load_file(tmp_path / "before" / "model.safetensors").items())
    go_on(tmp_path / "run")
    again = read_records(tmp_path / "run")
    assert [r.accuracy for r in again] == [r.accuracy for r in done.records]
    assert again[-1].diverged


def test_tensors_that_cannot_be_written_are_an_os_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        save_tensors(tmp_path / "nowhere" / "x.safetensors", {"w": torch.zeros(3)})
