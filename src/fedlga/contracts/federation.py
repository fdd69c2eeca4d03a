"""A small federation on digits, for checks that need to see training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedlga.core.round import run_rounds
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

if TYPE_CHECKING:
    from fedlga.core.types import Record, ServerState

SMALL = {
    "rounds": 3,
    "devices": 8,
    "cohort": 5,
    "partition": "dirichlet",
    "epochs": 3,
    "steps_per_epoch": 2,
    "paper.rho": 0.7,
}


def train(**changes: Any) -> tuple[ServerState, list[Record]]:
    """Train for a few rounds, with some slow devices; return the last state and the records."""
    experiment = preset("digits").changed({**SMALL, **changes})
    with simulate(experiment) as simulation:
        played = list(run_rounds(simulation.federation, simulation.start, experiment.rounds))
    return played[-1][0], [record for _, record in played]
