"""Checkpoints: an interrupted save loses nothing, and one that cannot be used is refused in one line."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import fedlga
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors, save_tensors
from fedlga.experiments.checkpoint import Origin, _make_manifest
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import find_versions
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
    with pytest.raises(BadInput, match="is of another version; start the run again"):
        list(run_and_record(load_for_resume(tmp_path / "run", {"rounds": 3}), tmp_path / "run", resume=True))


def test_a_checkpoint_without_checksums_is_continued_and_said_so(tmp_path):
    """The layout before this one."""
    fedlga.run(SMALL.changed({"rounds": 2}), tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint"
    vectors, metadata = load_tensors(checkpoint / "server.safetensors")
    save_tensors(checkpoint / "server.safetensors", vectors, {**metadata, "layout": "2"})
    (checkpoint / "manifest.json").unlink()
    resumed = list(run_and_record(load_for_resume(tmp_path / "run", {"rounds": 4}), tmp_path / "run", resume=True))
    assert [record.note for record in resumed] == [
        "continued: the checkpoint is of an earlier version, without checksums",
        None,
    ]
    fedlga.run(SMALL.changed({"rounds": 4}), tmp_path / "whole")
    one, other = (tmp_path / name / "model.safetensors" for name in ("whole", "run"))
    assert one.read_bytes() == other.read_bytes()


# A checkpoint proves what it is


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of Scaffold, stopped after two of six rounds: weights, control and twenty devices' memories."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    run_some_rounds(SMALL.changed({"method": "scaffold"}), folder, 2)
    return folder


@pytest.fixture
def copied(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def read_origin(checkpoint: Path) -> Origin:
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    return Origin(manifest["experiment"], manifest["kernel"], manifest["versions"])


def resume(folder: Path):
    return list(run_and_record(load_for_resume(folder, {}), folder, resume=True))


def flip_last_byte(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1  # of a weight: the file is as readable as before
    (folder / name).write_bytes(content)


def remove_memory(folder: Path) -> None:
    sorted((folder / "devices").iterdir())[0].unlink()


def add_memory(folder: Path) -> None:
    shutil.copy(sorted((folder / "devices").iterdir())[0], folder / "devices" / "999.safetensors")


def exchange_memories(folder: Path) -> None:
    one, other, *_ = sorted((folder / "devices").iterdir())
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def edit_manifest(folder: Path) -> None:
    """Change what it says of the experiment, and not its checksum."""
    file = folder / "manifest.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))


def say_it_is_of_the_layout_before(folder: Path) -> None:
    """Flip one bit: that layout has no checksums."""
    file = folder / "server.safetensors"
    content = file.read_bytes()
    assert content.count(b'"layout":"3"') == 1
    file.write_bytes(content.replace(b'"layout":"3"', b'"layout":"2"'))


DAMAGES = {
    "a bit of the weights": (lambda f: flip_last_byte(f, "server.safetensors"), "server.safetensors does not match"),
    "a memory is missing": (remove_memory, r"devices/\d+.safetensors is missing"),
    "a memory too many": (add_memory, "devices/999.safetensors does not belong to it"),
    "memories exchanged": (exchange_memories, r"devices/\d+.safetensors does not match its checksum"),
    "the manifest edited": (edit_manifest, "manifest.json does not match its checksum"),
    "the layout before": (say_it_is_of_the_layout_before, "server.safetensors does not match its checksum"),
    "the manifest is missing": (lambda f: (f / "manifest.json").unlink(), "manifest.json cannot be read"),
    "the manifest is a list": (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
    "the manifest is deep": (lambda f: (f / "manifest.json").write_text("[" * 100_000), "manifest.json cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_is_not_what_was_written_is_refused(damage, copied):
    change, words = DAMAGES[damage]
    change(copied / "checkpoint")
    before = read_everything(copied)
    with pytest.raises(BadInput, match=rf"--resume: the checkpoint in .* is damaged \(.*{words}") as caught:
        resume(copied)
    assert "\n" not in str(caught.value)
    assert read_everything(copied) == before, "nothing is written"


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checkpoint_before_a_damaged_one_counts(damage, copied, tmp_path):
    shutil.copytree(copied / "checkpoint", copied / "checkpoint.old")
    DAMAGES[damage][0](copied / "checkpoint")
    resume(copied)
    fedlga.run(SMALL.changed({"method": "scaffold"}), tmp_path / "whole")
    assert_same_state(tmp_path / "whole", copied)


def test_the_checkpoint_that_counts_stays_until_the_next_is_whole(copied, monkeypatch):
    """A save that is killed at its first rename leaves one to continue from, even if it went on from an older one."""
    shutil.copytree(copied / "checkpoint", copied / "checkpoint.old")
    flip_last_byte(copied / "checkpoint", "server.safetensors")
    replace = Path.replace

    def die(self, target):
        if self.name in ("checkpoint", "checkpoint.new"):
            raise KeyboardInterrupt
        return replace(self, target)

    resumed = run_and_record(load_for_resume(copied, {}), copied, resume=True)
    next(resumed)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            resumed.close()
    assert (copied / "checkpoint.damaged").is_dir()
    assert [record.round for record in resume(copied)] == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("seed = 0", "seed = 1", "seed is 1, and was 0"),
        ("lr = 0.1", "lr = 0.2", r"lr is 0\.2, and was 0\.1"),
        ('method = "scaffold"', 'method = "fedavg"', "method is 'fedavg', and was 'scaffold'"),
    ],
)
def test_an_experiment_that_was_edited_is_refused(before, after, words, copied):
    text = (copied / "experiment.toml").read_text()
    assert before in text
    (copied / "experiment.toml").write_text(text.replace(before, after))
    everything = read_everything(copied)
    with pytest.raises(BadInput, match=rf"--resume: {words} when the checkpoint in .* was made") as caught:
        resume(copied)
    assert "\n" not in str(caught.value)
    assert read_everything(copied) == everything


def test_another_version_and_another_kernel_are_said(copied, monkeypatch):
    """They change the last bits of what follows, and no more."""
    from fedlga.experiments import run as module

    find = module._find_origin

    def find_another(e, simulation):
        return replace(find(e, simulation), kernel="torch", versions={"torch": "9.0"})

    monkeypatch.setattr(module, "_find_origin", find_another)
    first, *rest = resume(copied)
    torch = find_versions()["torch"]
    kernel = "trained by the compiled kernel before, by torch now"
    assert first.note == f"continued: {kernel}, torch was {torch} before, is 9.0 now"
    assert all(record.note is None for record in rest)


def test_rounds_after_the_checkpoint_are_put_aside(copied):
    lines = (copied / "rounds.jsonl").read_bytes()
    later = lines.splitlines(keepends=True)[-1].replace(b'"round": 2', b'"round": 3')
    (copied / "rounds.jsonl").write_bytes(lines + later + b'{"round": 4, "cut off')
    resume(copied)
    assert (copied / "rounds.aside.jsonl").read_bytes() == later + b'{"round": 4, "cut off\n'
    assert (copied / "rounds.jsonl").read_bytes().startswith(lines)


def test_what_was_put_aside_before_stays_there(copied):
    """Of a run that was continued twice from an early checkpoint, it may hold the only record of what was done."""
    (copied / "rounds.aside.jsonl").write_bytes(b"first\n")
    lines = (copied / "rounds.jsonl").read_bytes()
    (copied / "rounds.jsonl").write_bytes(lines + b"second")
    resume(copied)
    assert (copied / "rounds.aside.jsonl").read_bytes() == b"first\nsecond\n"


def test_unknown_fields_of_records_are_still_there_after_a_resume(copied):
    text = (copied / "rounds.jsonl").read_text()
    (copied / "rounds.jsonl").write_text(text.replace('{"version"', '{"battery": 0.5, "version"'))
    resume(copied)
    values = [json.loads(line) for line in (copied / "rounds.jsonl").read_text().splitlines()]
    assert [v["round"] for v in values] == [1, 2, 3, 4, 5, 6]
    assert [v.get("battery") for v in values] == [0.5, 0.5, None, None, None, None]


def test_a_checkpoint_of_another_model_is_not_used(tmp_path):
    """Such as one that was made before the model's code was changed."""
    fedlga.run(SMALL.changed({"rounds": 2}), tmp_path / "run")
    file = tmp_path / "run" / "checkpoint" / "server.safetensors"
    vectors, metadata = load_tensors(file)
    save_tensors(file, {name: vector[1:] for name, vector in vectors.items()}, metadata)
    manifest = _make_manifest(file.parent, read_origin(file.parent))
    (file.parent / "manifest.json").write_text(json.dumps(manifest))
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
