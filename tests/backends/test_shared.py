"""Shared tensors: in memory, or on disk if memory is full; removed at the end."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import torch

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
