"""All six methods on one set of Ray processes: `python on_ray.py FOLDER` leaves runs of each in there.

In a process of its own, because Ray leaves threads and sockets behind in the one that started it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedlga.backends.flower.ray import simulate_grid
from fedlga.core.registry import names_of
from fedlga.experiments.flower_client import app
from fedlga.experiments.run import run_and_record
from hard_experiment import HARD, OWN_TASKS, hard_experiment, task_experiment

if __name__ == "__main__":
    with simulate_grid(HARD["devices"], 2, app) as grid:
        for name in names_of("method"):  # a busy machine takes long to start Ray: no device may be missing
            experiment = hard_experiment(name).changed({"backend": "flower", "grace": 600.0})
            assert len(list(run_and_record(experiment, Path(sys.argv[1]) / name, grid=grid))) == HARD["rounds"]
            for task in OWN_TASKS:
                experiment = task_experiment(task, name).changed({"backend": "flower", "grace": 600.0})
                folder = Path(sys.argv[1]) / f"{task}-{name}"
                assert len(list(run_and_record(experiment, folder, grid=grid))) == experiment.rounds
