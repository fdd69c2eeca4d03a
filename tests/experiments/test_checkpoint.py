"""Checkpoints: an interrupted save loses nothing, and one that cannot be used is refused in one line."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

import fedlga
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors, save_tensors
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.run import load_for_resume, run_and_record
from run_folders import assert_same_state, read_everything

SMALL = preset("digits").changed({"rounds": 6, "steps_per_epoch": 1, "lr": 0.1, "target": 0.3})


def run_some_rounds(experiment: Experiment, folder: Path, rounds: int) -> None:
    records = run_and_record(experiment, folder)
    list(islice(records, rounds))
    records.close()


def test_a_save_killed_between_its_renames_loses_nothing(tmp_path):
    fedlga.run(SMALL, tmp_path / "whole")
    folder = tmp_path / "killed"
    run_some_rounds(SMALL, folder, 2)
    (folder / "checkpoint").rename(folder / "checkpoint.old")  # killed here, the new one not yet in place
    resumed = run_and_record(load_for_resume(folder, {}), folder, resume=True)
    list(islice(resumed, 1))
    resumed.close()
    assert not (folder / "checkpoint.old").exists()
    list(run_and_record(load_for_resume(folder, {}), folder, resume=True))
    assert_same_state(tmp_path / "whole", folder)


@pytest.mark.parametrize("pattern", ["server.safetensors", "devices/*.safetensors"])
def test_a_damaged_checkpoint_is_one_line(tmp_path, pattern):
    folder = tmp_path / "run"
    fedlga.run(SMALL.changed({"rounds": 2, "method": "scaffold"}), folder)
    file = sorted((folder / "checkpoint").glob(pattern))[0]
    file.write_bytes(b"not a checkpoint")
    before = read_everything(folder)
    with pytest.raises(BadInput, match=r"--resume: the checkpoint in .* is damaged") as caught:
        list(run_and_record(load_for_resume(folder, {"rounds": 4}), folder, resume=True))
    assert "\n" not in str(caught.value)
    assert read_everything(folder) == before


def test_a_checkpoint_of_an_earlier_version_is_not_misread(tmp_path):
    fedlga.run(SMALL.changed({"rounds": 2}), tmp_path / "run")
    file = tmp_path / "run" / "checkpoint" / "server.safetensors"
    vectors, metadata = load_tensors(file)
    save_tensors(file, vectors, {"round": metadata["round"]})
    with pytest.raises(BadInput, match="is of an earlier version; start the run again"):
        list(run_and_record(load_for_resume(tmp_path / "run", {"rounds": 3}), tmp_path / "run", resume=True))


def test_a_checkpoint_of_another_model_is_not_used(tmp_path):
    fedlga.run(SMALL.changed({"rounds": 2}), tmp_path / "run")
    file = tmp_path / "run" / "checkpoint" / "server.safetensors"
    vectors, metadata = load_tensors(file)
    save_tensors(file, {name: vector[1:] for name, vector in vectors.items()}, metadata)
    with pytest.raises(BadInput, match="belongs to another model"):
        list(run_and_record(load_for_resume(tmp_path / "run", {"rounds": 3}), tmp_path / "run", resume=True))
