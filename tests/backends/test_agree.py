"""Serial and pool give the same results to the last bit: every method, every policy, any number of workers."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from data_for_tests import as_task_data, tiny_cifar
from fedlga.backends.pool.workers import Workers
from fedlga.core.registry import find, names_of
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.run import run_and_record
from fedlga.experiments.simulation import simulate
from hard_experiment import OWN_TASKS, task_experiment

pytestmark = pytest.mark.slow

PAIRS = [(m, p) for m in names_of("method") for p in find("method", m).policies or names_of("policy")]
# Unequal sizes, momentum, decay, clipping, examples as weights: everything that could come in another order.
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


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Workers]:
    processes = Workers(2)
    yield processes
    processes.close()


def outcome(experiment: Experiment, workers: Workers | None = None):
    """Return all results of a run: the last state, the memories of all devices, and records without their seconds."""
    with simulate(experiment, workers=workers) as simulation:
        rounds = list(run_rounds(simulation.federation, simulation.start, experiment.rounds))
        memories = {device: dict(memory) for device, memory in simulation.federation.backend.memories()}
    state, records = rounds[-1][0], [replace(record, seconds=0.0) for _, record in rounds]
    return state, memories, records


@pytest.mark.parametrize("clip", [5.0, 0.0], ids=["plain", "compiled"])  # the kernel does not clip
@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_serial_and_pool_agree(method, policy, clip, workers):
    experiment = preset("digits").changed({**HARD, "clip": clip, "method": method, "stragglers": policy})
    state, memories, records = outcome(experiment)
    pooled, pool_memories, pool_records = outcome(experiment.changed({"backend": "pool"}), workers)
    assert torch.equal(state.w, pooled.w)
    assert records == pool_records
    assert state.memory.keys() == pooled.memory.keys()
    assert all(torch.equal(state.memory[name], pooled.memory[name]) for name in state.memory)
    assert memories.keys() == pool_memories.keys()
    for device, memory in memories.items():
        assert all(torch.equal(memory[name], pool_memories[device][name]) for name in memory)
    assert any(record.slow for record in records), "no device was slow, so nothing was tested"


@pytest.mark.parametrize("scale", ["feedback", "growth"])
def test_private_completing_agrees_and_continues(scale, two_workers, tmp_path):
    changes = {**HARD, "rounds": 5, "method": "scaffold", "stragglers": "complete", "private": True, "scale": scale}
    experiment = preset("digits").changed(changes)
    state, _, records = outcome(experiment)
    pooled, _, pool_records = outcome(experiment.changed({"backend": "pool"}), two_workers)
    assert torch.equal(state.w, pooled.w)
    assert records == pool_records
    assert any(record.scales for record in records), "nothing was completed, so nothing was tested"
    list(run_and_record(experiment.changed({"rounds": 3}), tmp_path / "r"))
    rest = list(run_and_record(experiment, tmp_path / "r", resume=True))
    assert [replace(record, seconds=0.0) for record in rest] == records[3:]


@pytest.mark.parametrize("task", OWN_TASKS)
@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_tasks_agree(method, policy, task, two_workers):
    """A regression whose model has BatchNorm, and texts that are read one by one, with dropout."""
    experiment = task_experiment(task, method).changed({"stragglers": policy})
    state, memories, records = outcome(experiment)
    pooled, pool_memories, pool_records = outcome(experiment.changed({"backend": "pool"}), two_workers)
    assert torch.equal(state.w, pooled.w)
    assert (state.buffers is None) == (pooled.buffers is None) == (task == "text")
    assert state.buffers is None or torch.equal(state.buffers, pooled.buffers)
    assert records == pool_records
    assert memories.keys() == pool_memories.keys()
    assert any(record.slow for record in records), "no device was slow, so nothing was tested"


def test_devices_that_keep_their_batch_norm_agree(two_workers):
    experiment = task_experiment("regression", "scaffold").changed({"batch_norm": "device"})
    state, memories, records = outcome(experiment)
    pooled, pool_memories, pool_records = outcome(experiment.changed({"backend": "pool"}), two_workers)
    assert torch.equal(state.w, pooled.w)
    assert records == pool_records
    assert len(memories) > 1
    for device, memory in memories.items():
        assert {"own.weights", "own.buffers", "control"} == set(memory)
        assert all(torch.equal(memory[name], pool_memories[device][name]) for name in memory)


OWN = {"devices": 4, "cohort": 4, "partition": "iid", "rounds": 4, "steps_per_epoch": 2}


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_method_that_forgets_and_one_vector_under_two_names(backend, tmp_path):
    """Counts go 1, 2, none, 1; the checkpoint holds one vector twice; the unset setting is in no file."""
    experiment = preset("digits").changed({**OWN, "method": "methods_for_tests:Forgetful", "backend": backend})
    assert len(list(run_and_record(experiment, tmp_path / "r"))) == 4
    with simulate(experiment) as simulation:
        counts: list[list[float]] = []
        for _ in run_rounds(simulation.federation, simulation.start, 4):
            held = dict(simulation.federation.backend.memories())
            counts.append([float(memory["count"][0]) for memory in held.values() if "count" in memory])
    assert counts == [[1.0] * 4, [2.0] * 4, [], [1.0] * 4]
    kept, _ = load_tensors(tmp_path / "r" / "checkpoint" / "server.safetensors")
    assert torch.equal(kept["w"], kept["memory.average"])
    assert torch.equal(kept["w"], kept["memory.again"])
    written = tomllib.loads((tmp_path / "r" / "experiment.toml").read_text())
    assert "limit" not in written["options"].get("methods_for_tests:Forgetful", {})


@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_an_upload_that_is_not_as_long_as_the_model_is_refused(backend):
    experiment = preset("digits").changed({**OWN, "method": "methods_for_tests:Short", "backend": backend})
    said = r"finish uploads loss of \(1,\) torch.float32; it takes loss, of \(\d+,\)"
    with simulate(experiment) as simulation, pytest.raises(BadInput, match=said):
        list(run_rounds(simulation.federation, simulation.start, 1))


def test_there_are_21_combinations():
    assert len(PAIRS) == 21


@pytest.mark.parametrize("model", ["mlp", "cnn", "models_for_tests:with_dropout", "models_for_tests:in_eval_mode"])
def test_backends_agree_on_every_kind_of_layer(model, workers):
    experiment = preset("digits").changed({"model": model, "rounds": 2, "method": "scaffold"})
    serial, _, _ = outcome(experiment)
    pooled, _, _ = outcome(experiment.changed({"backend": "pool"}), workers)
    assert torch.equal(serial.w, pooled.w)
    assert serial.buffers is None
    assert pooled.buffers is None


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedlga"])
def test_backends_agree_on_the_buffers_of_batch_norm(method, workers):
    model = "models_for_tests:with_batch_norm"
    experiment = preset("digits").changed({"model": model, "rounds": 2, "method": method})
    serial, memories, records = outcome(experiment)
    pooled, pool_memories, pool_records = outcome(experiment.changed({"backend": "pool"}), workers)
    assert torch.equal(serial.w, pooled.w)
    assert len(serial.buffers) == 2 * 16
    assert torch.equal(serial.buffers, pooled.buffers)
    assert not torch.equal(serial.buffers, torch.tensor([0.0] * 16 + [1.0] * 16)), "not as the model started"
    assert records == pool_records
    assert memories.keys() == pool_memories.keys()


def test_augmented_colour_images_agree(workers):
    experiment = preset("cifar10").changed(
        {"devices": 4, "cohort": 3, "rounds": 2, "epochs": 2, "classes_per_device": 5, "steps_per_epoch": 2}
    )
    data = as_task_data(tiny_cifar(), experiment.model)
    results = []
    for backend in ("serial", "pool"):
        with simulate(experiment.changed({"backend": backend}), data=data, workers=workers) as simulation:
            results.append(list(run_rounds(simulation.federation, simulation.start, 2))[-1][0].w)
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
