"""Where a node keeps its device's memory, and from which round it continues."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict

from fedlga.backends.flower.node_memory import device_number, own_memory_file
from fedlga.backends.memory_store import MemoryFile
from fedlga.core.settings import BadInput


def test_a_device_continues_from_the_round_that_counted(tmp_path):
    def write(counted, round):
        MemoryFile(folder, counted).write(round, {"v": torch.full((2,), float(round))}, keep_counted=True)

    folder = tmp_path / "run"
    assert MemoryFile(folder, -1).read() == {}
    write(-1, 0)
    assert MemoryFile(folder, -1).read() == {}  # round 0 came too late: it did not count
    write(-1, 1)
    write(1, 2)
    assert MemoryFile(folder, 1).read()["v"].tolist() == [1, 1]  # round 2 was dropped, or is repeated
    assert MemoryFile(folder, 2).read()["v"].tolist() == [2, 2]
    assert sorted(file.name for file in folder.iterdir()) == ["1.safetensors", "2.safetensors"]
    with pytest.raises(BadInput, match="round 0 of this device is gone"):
        MemoryFile(folder, 0).read()


def context(**config):
    return Context(1, 77, config, RecordDict(), {})


def test_the_memory_is_where_the_node_says_or_in_the_users_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    own = own_memory_file(context(device=3, **{"state-dir": str(tmp_path / "mine")}), "abc", 4)
    assert own == MemoryFile(tmp_path / "mine" / "abc", 4, durable=True)
    state = tmp_path / "state" / "fedlga"
    assert own_memory_file(context(device=3), "abc", 4).folder == state / "device-3" / "abc"
    assert own_memory_file(context(**{"partition-id": 2}), "abc", 4).folder == state / "device-2" / "abc"
    assert own_memory_file(context(), "abc", 4).folder == state / "device-77" / "abc"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert own_memory_file(context(device=3), "abc", 4).folder.is_relative_to(Path.home() / ".local" / "state")


def test_what_a_node_remembers_is_on_the_disk_before_the_round_before_goes(tmp_path, monkeypatch):
    """A node of which the power was cut would have a memory of zeros, and refuse all work from then on."""
    own = own_memory_file(context(device=3, **{"state-dir": str(tmp_path)}), "abc", 1)
    own.write(1, {"v": torch.ones(2)})
    synced: list[tuple[str, bool]] = []

    def note(path):
        synced.append((path.name, (tmp_path / "abc" / "1.safetensors").exists()))

    monkeypatch.setattr("fedlga.core.files.sync", note)
    monkeypatch.setattr("fedlga.core.tensors.sync", note)
    monkeypatch.setattr("fedlga.backends.memory_store.sync", note)
    own.write(2, {"v": torch.ones(2)})
    assert synced == [("2.safetensors.half", True), ("abc", True)]


def test_a_run_cannot_name_a_folder_elsewhere():
    with pytest.raises(BadInput, match="it takes up to 100 letters and digits"):
        own_memory_file(context(device=3), "../../etc", 0)


def test_a_node_needs_a_number():
    assert device_number({"device": 3, "partition-id": 4}) == 3
    assert device_number({"partition-id": 4}) == 4
    for config in ({}, {"device": "3"}):
        with pytest.raises(BadInput, match="device=N"):
            device_number(config)
