"""Shared tensors: in memory, or on disk if memory is full; removed at the end."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import torch

from fedlga.backends import shared as shared_module
from fedlga.backends.shared import SharedFolder, SharedTensor


def test_shared_tensors_are_on_disk_if_memory_is_full(monkeypatch, tmp_path):
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    disk.mkdir()
    real = os.posix_fallocate
    monkeypatch.setattr("fedlga.backends.shared._memory_files", lambda: str(memory))
    monkeypatch.setattr("tempfile.tempdir", str(disk))

    def full(descriptor: int, start: int, size: int) -> None:
        if str(memory) in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(28, "No space left on device")
        real(descriptor, start, size)

    monkeypatch.setattr("os.posix_fallocate", full)
    folder = SharedFolder()
    shared, tensor = folder.share(torch.arange(6, dtype=torch.float32).reshape(2, 3))
    assert str(disk) in shared.path
    assert torch.equal(shared.open(), tensor)
    folder.close()


def test_a_shared_tensor_is_found_by_its_plain_values_and_changes_for_all():
    folder = SharedFolder()
    shared, tensor = folder.share(torch.arange(6).reshape(2, 3))
    other = SharedTensor(**shared.plain()).open()
    tensor[1, 2] = 9
    assert other.tolist() == [[0, 1, 2], [3, 4, 9]]
    folder.close()
    assert other[1, 2] == 9, "an open tensor stays valid"
    assert not Path(shared.path).exists()


def test_without_a_reference_the_files_are_removed():
    folder = SharedFolder()
    file = folder.folder("memory", in_memory=True) / "file"
    file.write_text("text")
    del folder
    gc.collect()
    assert not file.parent.parent.exists()


def leave_behind(parent, *words):
    """Start a process that opens a shared folder below `parent`, and kill it."""
    code = "import sys, time; from fedlga.backends import shared; shared._memory_files = lambda: sys.argv[1];"
    code += "f = shared.SharedFolder(); f.new((4,)); print(f.folders()[0], flush=True); time.sleep(600)"
    command = [sys.executable, "-c", code, str(parent), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    return process, Path(process.stdout.readline().strip())


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, monkeypatch):
    killed, left = leave_behind(tmp_path)
    alive, used = leave_behind(tmp_path)
    foreign = tmp_path / "fedlga-notes"
    foreign.mkdir()
    (foreign / "mine.txt").write_text("not a shared folder")
    assert left.is_dir()
    assert used.is_dir()
    killed.kill()
    killed.wait()
    try:
        monkeypatch.setattr(shared_module, "_memory_files", lambda: str(tmp_path))
        folder = SharedFolder()
        folder.new((3,))
        assert not left.exists()
        assert used.is_dir(), "its process lives"
        assert (foreign / "mine.txt").exists()
        folder.close()
    finally:
        alive.kill()
        alive.wait()
        alive.stdout.close()
        killed.stdout.close()


def test_a_link_is_not_followed_by_the_sweep(tmp_path, monkeypatch):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "fedlga.owner").write_text("")
    parent = tmp_path / "shm"
    parent.mkdir()
    (parent / "fedlga-link").symlink_to(outside)
    monkeypatch.setattr(shared_module, "_memory_files", lambda: str(parent))
    SharedFolder().new((3,))
    assert (outside / "fedlga.owner").exists()
