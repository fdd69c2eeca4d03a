"""The pool's processes: one that ends is replaced, and its work is done again to the same bits."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
import torch

from fedlga.backends.pool import workers as module
from fedlga.backends.pool.workers import WorkerEnded, WorkerFailed, Workers, describe_end
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

pytestmark = pytest.mark.slow

ROUNDS = 6
SCAFFOLD = preset("digits").changed({"backend": "pool", "method": "scaffold", "rounds": ROUNDS})  # devices remember


@pytest.fixture(scope="module")
def undisturbed():
    """The same federation, in one process: its weights and records."""
    with simulate(SCAFFOLD.changed({"backend": "serial"})) as simulation:
        played = list(run_rounds(simulation.federation, simulation.start, ROUNDS))
    return played[-1][0].w.clone(), [replace(record, seconds=0.0) for _, record in played]


def play(disturb, experiment=SCAFFOLD):
    """Run with two workers; `disturb` gets them before every round."""
    workers = Workers(2)
    played = []
    try:
        with simulate(experiment, workers=workers) as simulation:
            rounds = run_rounds(simulation.federation, simulation.start, experiment.rounds)
            for round in range(experiment.rounds):
                disturb(round, workers)
                played.append(next(rounds))
            return played[-1][0].w.clone(), [record for _, record in played]
    finally:
        workers.close()


def assert_undisturbed(result, undisturbed, notes):
    w, records = result
    assert torch.equal(w, undisturbed[0])
    assert [replace(r, seconds=0.0, note=None) for r in records] == undisturbed[1]
    assert [r.note for r in records] == notes


def test_a_worker_that_was_killed_is_replaced_and_the_weights_are_the_same(undisturbed):
    def kill(round, workers):
        if round in (2, 4):
            os.kill(workers._processes[round // 4].pid, signal.SIGKILL)

    words = "worker {} was killed (by signal 9: is there enough memory?), and was replaced"
    notes = [None, None, words.format(0), None, words.format(1), None]
    assert_undisturbed(play(kill), undisturbed, notes)


def test_all_workers_killed_at_once_are_replaced(undisturbed):
    def kill(round, workers):
        if round == 3:
            for process in workers._processes:
                process.kill()

    w, records = play(kill)
    assert torch.equal(w, undisturbed[0])
    assert records[3].note.count("was killed") == 2


def test_a_worker_that_stands_still_is_replaced(undisturbed, monkeypatch):
    """It is stopped, and used no processor time for as long as one may."""
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(module, "STANDSTILL_SECONDS", 0.2)

    def stop(round, workers):
        if round == 2:
            os.kill(workers._processes[1].pid, signal.SIGSTOP)

    w, records = play(stop)
    assert torch.equal(w, undisturbed[0]), "other workers may have been slow too, and replaced: nothing changes"
    assert "worker 1 stood still for 0.2 seconds, and was replaced" in records[2].note


KILLER = """
import os
import sys
from torch import nn

class Killer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if "fedlga.backends.pool.worker" in sys.orig_argv and self.calls > {calls}:
            os._exit(7)
        return self.layer(x.flatten(1))

def net(shape, classes):
    return Killer()
"""


@pytest.mark.parametrize(
    ("calls", "work"),
    [(20, r"the work of device \d+ in round 1"), (0, "the set-up")],  # a model is tried before it is trained
)
def test_work_that_ends_every_worker_is_named(calls, work, tmp_path, monkeypatch):
    (tmp_path / f"killer_{calls}.py").write_text(KILLER.format(calls=calls))
    monkeypatch.syspath_prepend(str(tmp_path))
    experiment = preset("digits").changed({"backend": "pool", "model": f"killer_{calls}:net", "rounds": 1})
    words = rf"^{work} ended 3 workers, one after the other: worker \d ended unexpectedly \(exit code 7\)$"
    with pytest.raises(WorkerFailed, match=words):
        play(lambda round, workers: None, experiment.changed({"epochs": 50, "method": "fedavg"}))


def test_an_error_in_a_worker_is_not_tried_again():
    workers = Workers(1)
    try:
        workers.send(0, {"assignment": {}})
        with pytest.raises(WorkerFailed, match="an assignment before the set-up") as caught:
            workers.receive(0)
        assert not isinstance(caught.value, WorkerEnded)
        workers.send(0, {"setup": {"folders": []}, "path": []})
        with pytest.raises((WorkerFailed, BadInput)):
            workers.receive(0)
    finally:
        workers.close()


def test_an_answer_that_was_cut_off_is_no_answer():
    workers = Workers(1)
    try:
        workers._received[0] += b'{"ready": tr'
        workers._processes[0].kill()
        with pytest.raises(WorkerEnded, match="was killed"):
            workers.receive(0)
    finally:
        workers.close()


def test_how_a_worker_ended_is_said_in_words():
    assert describe_end(-9) == "was killed (by signal 9: is there enough memory?)"
    assert describe_end(-11) == "was ended by signal 11"
    assert describe_end(3) == "ended unexpectedly (exit code 3)"
