"""All six methods, and tasks with every method and policy, on one set of Ray processes.

`python on_ray.py FOLDER` leaves the runs in there. It is a process of its own, because Ray leaves threads and sockets
behind in the one that started it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedlga.backends.flower.ray import simulate_grid
from fedlga.core.registry import names_of
from fedlga.experiments.flower_client import simulated_app
from fedlga.experiments.run import run_and_record
from hard_experiment import HARD, OWN_TASKS, PAIRS, hard_experiment, task_experiment

if __name__ == "__main__":
    experiments = {name: hard_experiment(name) for name in names_of("method")}
    for task in OWN_TASKS:
        experiments |= {f"{task}-{m}-{policy}": task_experiment(task, m, policy) for m, policy in PAIRS}
    with simulate_grid(HARD["devices"], 2, simulated_app) as grid:
        for name, experiment in experiments.items():  # a busy machine takes long to start Ray: no device may be missing
            on_ray = experiment.changed({"backend": "flower", "grace": 600.0})
            assert len(list(run_and_record(on_ray, Path(sys.argv[1]) / name, grid=grid))) == experiment.rounds
