"""An experiment in which everything could depend on the order of the work, and the pairs of methods and policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedlga.core.registry import find, names_of
from fedlga.core.round import run_rounds
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.learning.task import load_task

if TYPE_CHECKING:
    from fedlga.backends.pool.workers import Workers
    from fedlga.core.types import Memory, Record, ServerState

# Every method with every policy that it goes with.
PAIRS = [(m, p) for m in names_of("method") for p in find("method", m).policies or names_of("policy")]
REFUSED_PAIRS = [(m, p) for m in names_of("method") for p in names_of("policy") if (m, p) not in PAIRS]
# Unequal sizes, momentum, decay, clipping, examples as weights: results would differ if anything came in another order.
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


OWN_TASKS = {file.stem: str(file) for file in sorted((Path(__file__).parent / "own_tasks").glob("*.py"))}


def task_experiment(task: str, method: str, policy: str | None = None) -> Experiment:
    """Return the experiment of a task in `own_tasks` with a method and a policy; None: the method's own policy."""
    experiment = Experiment(task=OWN_TASKS[task], method=method, backend="serial")
    return experiment.changed({**load_task(OWN_TASKS[task]).experiment, "stragglers": policy})


def hard_experiment(method: str) -> Experiment:
    """Return the hard experiment with a method."""
    return preset("digits").changed({**HARD, "method": method})


def run_in_memory(
    experiment: Experiment, workers: Workers | None = None
) -> tuple[ServerState, dict[int, Memory], list[Record]]:
    """Return all that a run gives: the last state, the memory of every device, the records without their seconds."""
    with simulate(experiment, workers=workers) as simulation:
        rounds = list(run_rounds(simulation.federation, simulation.start, experiment.rounds))
        memories = {device: dict(memory) for device, memory in simulation.federation.backend.memories()}
    return rounds[-1][0], memories, [replace(record, seconds=0.0) for _, record in rounds]
