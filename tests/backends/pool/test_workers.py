"""The pool's processes: one that dies is an error."""

from __future__ import annotations

import pytest

from fedlga.backends.pool.workers import WorkerFailed, Workers
from fedlga.core.round import run_rounds
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

pytestmark = pytest.mark.slow


def test_a_worker_that_dies_is_an_error_and_not_a_hang():
    workers = Workers(2)
    experiment = preset("digits").changed({"backend": "pool", "rounds": 50})
    try:
        with simulate(experiment, workers=workers) as simulation:
            rounds = run_rounds(simulation.federation, simulation.start, 50)
            next(rounds)
            workers._processes[0].kill()
            with pytest.raises(WorkerFailed, match="worker 0 ended unexpectedly"):
                for _ in rounds:
                    pass
    finally:
        workers.close()
