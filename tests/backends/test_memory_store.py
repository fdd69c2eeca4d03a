"""What devices remember: only of those that took part, in memory up to a limit and on disk beyond it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from fedlga.backends.memory_store import ON_NODES, MemoryFile, MemoryStore
from fedlga.backends.shared import SharedFolder
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

pytestmark = pytest.mark.slow

SMALL = preset("digits").changed({"rounds": 4, "steps_per_epoch": 1, "devices": 3000, "examples_per_device": 12})


@pytest.fixture
def shared():
    folder = SharedFolder()
    yield folder
    folder.close()


def keep(store, device, size, round=0):
    """Let a device remember a vector; return the folder that its own folder is in."""
    file = store.file(device)
    file.write(round, {"control": torch.full((size,), float(device))})
    store.count(device, file, round)
    return file.folder.parent


def test_the_first_stay_in_memory_and_the_rest_go_to_disk(shared):
    store = MemoryStore(shared, limit=10_000)
    places = [keep(store, device, 1000) for device in range(5)]  # 4,000 bytes each, and a little for the file's head
    assert places[0] == places[1] == places[2] != places[3] == places[4]
    assert [float(memory["control"][0]) for _, memory in store.memories()] == [0, 1, 2, 3, 4]
    assert keep(store, 1, 1000, round=1) == places[1], "a device stays where it was put first"


def test_if_memory_files_have_no_room_everything_goes_to_disk(shared, monkeypatch):
    usage = SimpleNamespace(total=100, free=20)
    monkeypatch.setattr("fedlga.backends.memory_store.shutil.disk_usage", lambda path: usage)
    store = MemoryStore(shared, limit=math.inf)
    assert keep(store, 0, 10).name == "memory-on-disk"


def test_room_that_is_promised_to_others_is_not_free(shared, monkeypatch):
    """64 MB of which 58 are free: of ten devices that write 8 MB each at once three fit, with some to spare."""
    usage = SimpleNamespace(total=64, free=58)
    monkeypatch.setattr("fedlga.backends.memory_store.shutil.disk_usage", lambda path: usage)
    places = [file.folder.parent.name for file in MemoryStore(shared, limit=math.inf).files(range(10), 8)]
    # 58 - 8 k > max(64 / 4, 4 * 8) for k = 1, 2, 3
    assert places == ["memory"] * 3 + ["memory-on-disk"] * 7


def test_devices_that_remember_nothing_take_no_room(shared):
    store = MemoryStore(shared, limit=math.inf)
    store.count(3, store.file(3), 0)
    assert list(store.memories()) == []
    assert store.file(3).read() == {}


def test_restoring_forgets_the_rest(shared):
    store = MemoryStore(shared, limit=10_000)
    for device in range(5):
        keep(store, device, 1000)
    store.restore([(7, {"control": torch.ones(2)})])
    assert [device for device, _ in store.memories()] == [7]
    assert store.file(0).read() == {}


def test_memories_of_a_superlinks_nodes_cannot_be_restored_here(shared):
    with pytest.raises(BadInput, match="are on the nodes of a SuperLink, not here"):
        MemoryStore(shared, limit=math.inf).restore([(0, {ON_NODES: torch.zeros(1)})])


def test_an_update_that_did_not_count_leaves_the_device_as_it_was(tmp_path):
    """Round 1 counted; round 2 was late, so round 3 continues from round 1."""
    MemoryFile(tmp_path / "device").write(1, {"control": torch.tensor([1.0])})
    counted = MemoryFile(tmp_path / "device", counted=1)
    counted.write(2, {"control": torch.tensor([2.0])}, keep_counted=True)
    assert counted.read()["control"].tolist() == [1.0]
    counted.write(3, {"control": torch.tensor([3.0])}, keep_counted=True)
    assert sorted(file.name for file in (tmp_path / "device").iterdir()) == ["1.safetensors", "3.safetensors"]
    assert MemoryFile(tmp_path / "device", counted=3).read()["control"].tolist() == [3.0]
    with pytest.raises(BadInput, match="memory: round 2 of this device is gone"):
        MemoryFile(tmp_path / "device", counted=2).read()
    counted.write(4, {"control": torch.tensor([4.0])})
    assert [file.name for file in (tmp_path / "device").iterdir()] == ["4.safetensors"]


def test_an_empty_memory_is_stored_too(shared):
    """It means that the device forgot."""
    store = MemoryStore(shared, limit=math.inf)
    keep(store, 0, 10)
    file = store.file(0)
    file.write(1, {})
    store.count(0, file, 1)
    assert [(device, dict(memory)) for device, memory in store.memories()] == [(0, {})]


def test_a_memory_file_is_the_same_after_json(tmp_path):
    file = MemoryFile(tmp_path, counted=4)
    assert MemoryFile.from_plain(file.plain()) == file


@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_a_limit_changes_nothing_but_the_place(backend, method):
    """Three thousand devices on 1,438 digits; those that took part are remembered, with any limit the same."""
    results = []
    for limit in (4.0, 1e-4, 0.0):
        experiment = SMALL.changed({"method": method, "backend": backend, "memory_limit": limit})
        with simulate(experiment) as simulation:
            *_, (state, _) = run_rounds(simulation.federation, simulation.start, 4)
            *_, (_, record) = run_rounds(simulation.federation, state, 5)
            memories = dict(simulation.federation.backend.memories())
            assert set(record.used) <= set(memories)
            assert len(memories) <= 5 * experiment.cohort
            results.append((state.w, memories))
    for w, memories in results[1:]:
        assert torch.equal(w, results[0][0])
        assert list(memories) == list(results[0][1])
        for device, memory in memories.items():
            for name, vector in memory.items():
                assert torch.equal(vector, results[0][1][device][name])
