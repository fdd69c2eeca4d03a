"""Schedules on every backend, and going on in the middle of a buffer."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from fedlga.core.registry import find, names_of
from fedlga.core.round import assign, run_rounds
from fedlga.experiments.presets import preset
from fedlga.experiments.run import load_for_resume, run_and_record
from fedlga.experiments.simulation import simulate
from run_folders import assert_same_state

UNEQUAL = {
    "fleet": "speeds",
    "speed_median": 2.0,
    "speed_sigma": 1.0,
    "deadline": 4.0,
    "devices": 16,
    "cohort": 6,
    "rounds": 6,
    "dropout": 0.05,
}
SCHEDULES = {
    "over-selection": {"schedule": "over-selection", "factor": 1.5},
    "buffered": {"schedule": "buffered", "buffer": 3, "at_work": 8},
    "one by one": {"schedule": "buffered", "buffer": 1, "at_work": 5, "staleness_limit": 4},
}


def combinations():
    for title, settings in SCHEDULES.items():
        schedule = find("schedule", settings["schedule"])
        for method in names_of("method"):
            cls = find("method", method)
            if schedule.is_stale and cls.needs_fresh:
                continue
            for policy in cls.policies or names_of("policy"):
                if not schedule.policies or policy in schedule.policies:
                    yield pytest.param(title, method, policy, id=f"{title}-{method}-{policy}")


def experiment(title, method, policy, **changes):
    return preset("digits").changed({**UNEQUAL, **SCHEDULES[title], "method": method, "stragglers": policy, **changes})


def play(e):
    with simulate(e) as simulation:
        played = list(run_rounds(simulation.federation, simulation.start, e.rounds))
    return played[-1][0], [record for _, record in played]


@pytest.mark.parametrize(("title", "method", "policy"), list(combinations()))
def test_serial_and_pool_agree_to_the_bit(title, method, policy):
    serial, pool = (play(experiment(title, method, policy, backend=b, workers=3)) for b in ("serial", "pool"))
    assert torch.equal(serial[0].w, pool[0].w)
    assert serial[0].jobs == pool[0].jobs
    timeless = [[{**r.as_dict(), "seconds": 0.0} for r in records] for _, records in (serial, pool)]
    assert timeless[0] == timeless[1]


def test_buffers_of_batch_norm_are_those_that_a_device_began_with():
    """A model with BatchNorm, stale: serial and pool agree, and the statistics move."""
    import numpy as np
    from torch import nn

    import fedlga

    x = np.random.default_rng(0).normal(3.0, 2.0, size=(120, 4)).astype(np.float32)
    task = fedlga.Task(lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), (x, np.arange(120) % 2))
    settings = {"schedule": "buffered", "buffer": 2, "at_work": 5, "method": "fedavg", "stragglers": "keep"}
    ends = []
    for backend in ("serial", "pool"):
        e = fedlga.Experiment(**settings, rounds=8, fleet="speeds", deadline=3.0, backend=backend, workers=2)
        with simulate(e, task=task) as simulation:
            ends.append(list(run_rounds(simulation.federation, simulation.start, 8))[-1][0])
    assert torch.equal(ends[0].w, ends[1].w)
    assert torch.equal(ends[0].buffers, ends[1].buffers)
    assert float(ends[0].buffers[:4].mean()) > 1, "the running means go to 3"


@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.parametrize("policy", ["wait", "complete"])
@pytest.mark.parametrize("done", [1, 3])
def test_a_run_that_stops_in_the_middle_of_a_buffer_goes_on_to_the_same_bits(tmp_path, backend, policy, done):
    e = experiment("one by one", "fedavg", policy, backend=backend, workers=2, rounds=9)
    list(run_and_record(e, tmp_path / "whole"))
    running = run_and_record(e, tmp_path / "stopped")
    list(islice(running, done))
    running.close()
    again = load_for_resume(tmp_path / "stopped", {})
    rest = list(run_and_record(again, tmp_path / "stopped", resume=True))
    assert [r.round for r in rest] == list(range(done + 1, 10))
    assert_same_state(tmp_path / "whole", tmp_path / "stopped")


def test_a_checkpoint_holds_what_devices_at_work_began_from(tmp_path):
    from fedlga.core.tensors import load_tensors

    e = experiment("buffered", "fedavg", "wait", backend="serial", rounds=3)
    list(run_and_record(e, tmp_path / "r"))
    vectors, metadata = load_tensors(tmp_path / "r" / "checkpoint" / "server.safetensors")
    assert any(name.startswith("earlier.") for name in vectors)
    assert float.fromhex(metadata["clock"]) > 0


@pytest.mark.parametrize("title", SCHEDULES)
def test_all_schedules_meet_the_same_devices(title):
    """How fast a device is, who drops out and which batches it sees depend on the seed alone."""
    first = []
    for settings in ({}, SCHEDULES[title]):
        e = preset("digits").changed({**UNEQUAL, "dropout": 0.3, "method": "fedavg", "stragglers": "wait", **settings})
        with simulate(e.changed({"backend": "serial"})) as simulation:
            f = simulation.federation
            plan = f.schedule.plan(f, simulation.start)
            jobs = {job.device: job for job in (*plan.ended, *plan.at_work)}
            updates = f.backend.run([assign(f, simulation.start, job) for job in jobs.values()])
            first.append((jobs, {update.device: update.delta for update in updates}))
    common = set(first[0][0]) & set(first[1][0])
    assert len(common) >= 4
    for device in common:
        before, after = (jobs[device] for jobs, _ in first)
        assert (before.steps_asked, before.lost, before.slow) == (after.steps_asked, after.lost, after.slow)
        if before.steps == after.steps:  # over-selection ends some of them earlier
            assert torch.equal(first[0][1][device], first[1][1][device]), "the same batches, from the same weights"
    assert sum(first[0][0][d].steps == first[1][0][d].steps > 0 for d in common) >= 2
