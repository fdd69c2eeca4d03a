"""Checkpoints: an interrupted save loses nothing, and one that cannot be used is refused in one line."""

from __future__ import annotations

import os
import shutil
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


def test_everything_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """A power cut keeps renames and loses what was not synced: zeros in place of a checkpoint."""
    synced: set[str] = set()
    renamed: list[tuple[str, str]] = []
    opened: dict[int, str] = {}
    open_file, fsync, replace = os.open, os.fsync, Path.replace

    def note_open(path, *more, **options):
        descriptor = open_file(path, *more, **options)
        opened[descriptor] = str(path)
        return descriptor

    def note_sync(descriptor):
        synced.add(opened[descriptor])
        fsync(descriptor)

    def note_replace(self, target):
        if str(tmp_path) in str(self):
            files = [self] if self.is_file() else [p for p in self.rglob("*") if p.is_file()]
            # A file inside a new checkpoint was synced as its half, and then renamed.
            unsynced = [p for p in files if not {str(p), f"{p}.half"} & synced]
            assert self.name == "checkpoint" or not unsynced, f"{unsynced} may be lost"
            renamed.append((self.name, Path(target).name))
        return replace(self, target)

    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    monkeypatch.setattr("fedlga.experiments.run.CHECKPOINT_SECONDS", 0.0)
    fedlga.run(SMALL.changed({"rounds": 2, "method": "scaffold"}), tmp_path / "run")
    names = dict(renamed)
    assert names["checkpoint.new"] == "checkpoint"
    assert {names[f"{name}.half"] for name in ("experiment.toml", "summary.json", "model.safetensors")}
    folder = tmp_path / "run"
    for path in (folder, folder / "rounds.jsonl", folder / "checkpoint.new", folder / "checkpoint.new" / "devices"):
        assert str(path) in synced


@pytest.mark.parametrize("pattern", ["server.safetensors", "devices/*.safetensors"])
def test_the_checkpoint_before_counts_if_the_new_one_is_damaged(tmp_path, pattern):
    experiment = SMALL.changed({"method": "scaffold"})
    fedlga.run(experiment, tmp_path / "whole")
    folder = tmp_path / "cut"
    run_some_rounds(experiment, folder, 2)
    shutil.copytree(folder / "checkpoint", tmp_path / "before")
    resumed = run_and_record(load_for_resume(folder, {}), folder, resume=True)
    list(islice(resumed, 2))
    resumed.close()
    shutil.copytree(tmp_path / "before", folder / "checkpoint.old")
    file = sorted((folder / "checkpoint").glob(pattern))[0]
    file.write_bytes(bytes(file.stat().st_size))  # zeros, as a power cut leaves them
    list(run_and_record(load_for_resume(folder, {}), folder, resume=True))
    assert_same_state(tmp_path / "whole", folder)


@pytest.mark.parametrize("text", ["", 'method = "fedavg"\n', "\0\0\0\0"])
def test_an_experiment_that_is_not_whole_is_not_continued(tmp_path, text):
    """It would train the default experiment in that folder."""
    run_some_rounds(SMALL, tmp_path / "run", 2)
    (tmp_path / "run" / "experiment.toml").write_text(text)
    before = read_everything(tmp_path / "run")
    with pytest.raises(BadInput) as caught:
        load_for_resume(tmp_path / "run", {})
    assert "\n" not in str(caught.value)
    assert "experiment.toml" in str(caught.value)
    assert read_everything(tmp_path / "run") == before
