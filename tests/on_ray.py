"""All six methods on one set of Ray processes: `python on_ray.py FOLDER` leaves a run of each in there.

In a process of its own, for Ray leaves threads and sockets behind in the one that started it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedlga.experiment import Experiment, preset
from fedlga.flower.ray import simulated_grid
from fedlga.methods import METHODS
from fedlga.runs import recorded
from test_backends_agree import HARD


def hard(method: str) -> Experiment:
    return preset("digits").changed({**HARD, "method": method})


if __name__ == "__main__":
    with simulated_grid(HARD["devices"], 2) as grid:
        for name in METHODS:  # a busy machine takes its time to start Ray: nobody may be missing
            experiment = hard(name).changed({"backend": "flower", "grace": 600.0})
            assert len(list(recorded(experiment, Path(sys.argv[1]) / name, grid=grid))) == HARD["rounds"]
