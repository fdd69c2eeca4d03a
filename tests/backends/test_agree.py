"""Serial and pool give the same results to the last bit: every method, every policy, any number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedlga.backends.pool import WorkerFailed, Workers
from fedlga.backends.shared import SharedFolder
from fedlga.experiment import Experiment, preset
from fedlga.federation import rounds
from fedlga.methods import METHODS, method_class
from fedlga.runs import recorded
from fedlga.settings import BadInput
from fedlga.simulation import simulate
from fedlga.tensors import load_tensors

PAIRS = [(method, policy) for method in METHODS for policy in method_class(method).policies]
# Unequal sizes, momentum, decay, clipping, examples as weights: whatever could come out in another order.
HARD = {
    "partition": "dirichlet",
    "devices": 8,
    "cohort": 5,
    "rounds": 3,
    "momentum": 0.5,
    "lr_decay": 0.1,
    "averaging": "examples",
    "clip": 5.0,
    "epochs": 3,
    "rho": 0.8,
}


@pytest.fixture(scope="module", params=[1, 2, 3])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    processes = Workers(request.param)
    yield processes
    processes.close()


def outcome(experiment: Experiment, workers: Workers | None = None):
    """All that a run is: weights, memories of the aggregator and of all devices, records without their seconds."""
    with simulate(experiment, workers=workers) as simulation:
        played = list(rounds(simulation.federation, simulation.start, experiment.rounds))
        memories = {device: dict(memory) for device, memory in simulation.federation.backend.memories()}
    server, records = played[-1][0], [replace(record, seconds=0.0) for _, record in played]
    return server, memories, records


@pytest.mark.parametrize("clip", [5.0, 0.0], ids=["plain", "compiled"])  # the kernel does not clip
@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_serial_and_pool_agree(method, policy, clip, workers):
    experiment = preset("digits").changed({**HARD, "clip": clip, "method": method, "stragglers": policy})
    server, memories, records = outcome(experiment)
    pooled, pool_memories, pool_records = outcome(experiment.changed({"backend": "pool"}), workers)
    assert torch.equal(server.w, pooled.w)
    assert records == pool_records
    assert server.memory.keys() == pooled.memory.keys()
    assert all(torch.equal(server.memory[name], pooled.memory[name]) for name in server.memory)
    assert memories.keys() == pool_memories.keys()
    for device, memory in memories.items():
        assert all(torch.equal(memory[name], pool_memories[device][name]) for name in memory)
    assert any(record.slow for record in records), "the fleet must have been unequal, or nothing was tested"


OWN = {"devices": 4, "cohort": 4, "partition": "iid", "rounds": 4, "steps_per_epoch": 2}


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_method_that_forgets_and_one_vector_under_two_names(backend, tmp_path):
    """Counts go 1, 2, none, 1; the checkpoint holds the weights twice; the unset setting is in no file."""
    experiment = preset("digits").changed({**OWN, "method": "methods_for_tests:Forgetful", "backend": backend})
    played = list(recorded(experiment, tmp_path / "r"))
    assert len(played) == 4
    with simulate(experiment) as simulation:
        counts: list[list[float]] = []
        for _ in rounds(simulation.federation, simulation.start, 4):
            held = dict(simulation.federation.backend.memories())
            counts.append([float(memory["count"][0]) for memory in held.values() if "count" in memory])
    assert counts == [[1.0] * 4, [2.0] * 4, [], [1.0] * 4]
    kept, _ = load_tensors(tmp_path / "r" / "checkpoint" / "server.safetensors")
    assert torch.equal(kept["w"], kept["memory.average"])


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_what_is_not_as_long_as_the_model_is_not_uploaded(backend):
    experiment = preset("digits").changed({**OWN, "method": "methods_for_tests:Short", "backend": backend})
    said = r"finish uploads loss of \(1,\) torch.float32; it takes loss, of \(\d+,\)"
    with simulate(experiment) as simulation, pytest.raises(BadInput, match=said):
        list(rounds(simulation.federation, simulation.start, 1))


def test_there_are_21_combinations():
    assert len(PAIRS) == 21


@pytest.mark.parametrize("model", ["mlp", "cnn", "models_for_tests:with_dropout", "models_for_tests:in_eval_mode"])
def test_backends_agree_on_every_kind_of_layer(model, workers):
    experiment = preset("digits").changed({"model": model, "rounds": 2, "method": "scaffold"})
    serial, _, _ = outcome(experiment)
    pooled, _, _ = outcome(experiment.changed({"backend": "pool"}), workers)
    assert torch.equal(serial.w, pooled.w)


def test_augmented_colour_images_agree(workers, tmp_path):
    from data_for_tests import tiny_cifar

    experiment = preset("cifar10").changed(
        {"devices": 4, "cohort": 3, "rounds": 2, "epochs": 2, "classes_per_device": 5, "steps_per_epoch": 2}
    )
    data = tiny_cifar()
    results = []
    for backend in ("serial", "pool"):
        with simulate(experiment.changed({"backend": backend}), data=data, workers=workers) as simulation:
            results.append(list(rounds(simulation.federation, simulation.start, 2))[-1][0].w)
    assert torch.equal(*results)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "feddyn"])
def test_an_audit_changes_nothing_and_is_the_same_everywhere(method, workers):
    experiment = preset("digits").changed({**HARD, "method": method, "stragglers": "complete"})
    plain, _, records = outcome(experiment)
    audited, _, serial = outcome(experiment.changed({"audit": True}))
    pooled, _, pool = outcome(experiment.changed({"audit": True, "backend": "pool"}), workers)
    assert torch.equal(plain.w, audited.w)
    assert torch.equal(plain.w, pooled.w)
    assert serial == pool
    assert [replace(r, audit=None) for r in serial] == records
    assert any(r.audit["stragglers"] for r in serial)


def test_a_worker_that_dies_is_an_error_and_not_a_hang():
    workers = Workers(2)
    experiment = preset("digits").changed({"backend": "pool", "rounds": 50})
    try:
        with simulate(experiment, workers=workers) as simulation:
            running = rounds(simulation.federation, simulation.start, 50)
            next(running)
            workers._processes[0].kill()
            with pytest.raises(WorkerFailed, match="worker 0 ended unexpectedly"):
                for _ in running:
                    pass
    finally:
        workers.close()


def test_a_model_that_fails_in_a_worker_says_so():
    experiment = preset("digits").changed({"backend": "pool", "model": "models_for_tests:fails_in_training"})
    with (
        pytest.raises(WorkerFailed, match="this model does not want to be trained"),
        simulate(experiment) as simulation,
    ):
        list(rounds(simulation.federation, simulation.start, 1))


def test_closing_leaves_no_files_and_no_processes(monkeypatch, tmp_path):
    monkeypatch.setattr("fedlga.backends.shared._memory_files", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    workers = Workers(2)
    processes = list(workers._processes)
    with simulate(preset("digits").changed({"backend": "pool"}), workers=workers) as simulation:
        next(rounds(simulation.federation, simulation.start, 1))
        assert any(tmp_path.iterdir())
    workers.close()
    assert not any(tmp_path.iterdir())
    assert all(process.poll() is not None for process in processes)


def test_shared_tensors_fall_back_to_disk_when_memory_is_full(monkeypatch, tmp_path):
    import os

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
    mapped, tensor = folder.share(torch.arange(6, dtype=torch.float32).reshape(2, 3))
    assert str(disk) in mapped.path
    assert torch.equal(mapped.open(), tensor)
    folder.close()


def test_a_bad_model_in_a_pool_is_bad_input():
    with (
        pytest.raises(BadInput, match="buffers that training changes"),
        simulate(preset("digits").changed({"backend": "pool", "model": "models_for_tests:with_batch_norm"})),
    ):
        pass
