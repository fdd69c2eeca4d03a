"""What devices remember: only of those that took part, in memory up to a limit and on disk beyond it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from fedlga.backends.memories import Homes, recall, remember
from fedlga.backends.shared import SharedFolder
from fedlga.experiment import preset
from fedlga.federation import rounds
from fedlga.simulation import simulate

SMALL = preset("digits").changed({"rounds": 4, "steps_per_epoch": 1, "devices": 3000, "examples_per_device": 12})


@pytest.fixture
def shared():
    folder = SharedFolder()
    yield folder
    folder.close()


def keep(homes, device, size):
    home = homes.of(device)
    remember(home, device, {"control": torch.full((size,), float(device))})
    homes.kept(device, home)
    return home


def test_the_first_stay_in_memory_and_the_rest_go_to_disk(shared):
    homes = Homes(shared, limit=10_000)
    places = [keep(homes, device, 1000) for device in range(5)]  # 4,000 bytes each, and a little for the file's head
    assert places[0] == places[1] == places[2] != places[3] == places[4]
    assert [float(memory["control"][0]) for _, memory in homes.items()] == [0, 1, 2, 3, 4]
    assert keep(homes, 1, 1000) == places[1], "a device keeps its home"


def test_where_memory_files_have_no_room_everything_goes_to_disk(shared, monkeypatch):
    monkeypatch.setattr("fedlga.backends.memories.shutil.disk_usage", lambda path: SimpleNamespace(total=100, free=20))
    homes = Homes(shared, limit=math.inf)
    assert keep(homes, 0, 10).name == "memory-on-disk"


def test_what_is_promised_to_others_is_no_room(shared, monkeypatch):
    """64 MB of which 58 are free: of ten devices that write 8 MB each at once three fit, with some to spare."""
    usage = SimpleNamespace(total=64, free=58)
    monkeypatch.setattr("fedlga.backends.memories.shutil.disk_usage", lambda path: usage)
    places = [home.name for home in Homes(shared, limit=math.inf).of_all(range(10), 8)]
    # 58 - 8 k > max(64 / 4, 4 * 8) for k = 1, 2, 3
    assert places == ["memory"] * 3 + ["memory-on-disk"] * 7


def test_devices_that_remember_nothing_take_no_room(shared):
    homes = Homes(shared, limit=math.inf)
    homes.kept(3, homes.of(3))
    assert list(homes.items()) == []
    assert recall(homes.of(3), 3) == {}


def test_refilling_forgets_the_rest(shared):
    homes = Homes(shared, limit=10_000)
    for device in range(5):
        keep(homes, device, 1000)
    homes.refill([(7, {"control": torch.ones(2)})])
    assert [device for device, _ in homes.items()] == [7]
    assert recall(homes.of(0), 0) == {}


@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_a_limit_changes_nothing_but_the_place(backend, method):
    """Three thousand devices on 1,438 digits; those that took part are remembered, with any limit the same."""
    found = []
    for limit in (4.0, 1e-4, 0.0):
        experiment = SMALL.changed({"method": method, "backend": backend, "memory_limit": limit})
        with simulate(experiment) as simulation:
            *_, (server, _) = rounds(simulation.federation, simulation.start, 4)
            *_, (_, record) = rounds(simulation.federation, server, 5)
            memories = dict(simulation.federation.backend.memories())
            assert set(record.used) <= set(memories)
            assert len(memories) <= 5 * experiment.cohort
            found.append((server.w, memories))
    for w, memories in found[1:]:
        assert torch.equal(w, found[0][0])
        assert list(memories) == list(found[0][1])
        for device, memory in memories.items():
            for name, vector in memory.items():
                assert torch.equal(vector, found[0][1][device][name])
