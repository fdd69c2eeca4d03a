"""What every learning task must hold."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch

from fedlga.contracts.base import NotChecked, expect
from fedlga.core.registry import find, names_of
from fedlga.core.round import run_rounds
from fedlga.experiments.config import Experiment
from fedlga.experiments.simulation import fit_experiment, load_data, simulate, split_data
from fedlga.learning.datasets.cache import cache_folder
from fedlga.learning.task import load_task

if TYPE_CHECKING:
    from fedlga.core.types import Record, ServerState
    from fedlga.learning.reading import TaskData


def _find_data(name: str) -> None:
    files = load_task(name).files
    if files is not None and files.missing(cache_folder() / files.folder):
        raise NotChecked("the data is not here: fedlga data fetch gets it")


def make_experiment(name: str, **changes: Any) -> Experiment:
    """Return a short experiment with the task's own settings."""
    _find_data(name)
    base = Experiment(task=name).changed(load_task(name).experiment)
    short = {"rounds": 2, "epochs": 2, "steps_per_epoch": 1, "evaluate_every": 2, "backend": "serial", "cohort": 0}
    if base.cohort and base.devices == 0:
        short["cohort"] = min(base.cohort, 4)
    return base.changed({**short, "lr_warmup": 0, **changes})


@functools.lru_cache(maxsize=1)
def read_once(name: str) -> TaskData:
    """Return the task's data; reading it for every check would take most of the time."""
    return load_data(make_experiment(name))


def train(name: str, **changes: Any) -> tuple[ServerState, list[Record]]:
    """Train for two short rounds; return the last state and the records."""
    experiment = make_experiment(name, **changes)
    with simulate(experiment, data=read_once(name)) as simulation:
        played = list(run_rounds(simulation.federation, simulation.start, experiment.rounds))
    return played[-1][0], [record for _, record in played]


def gives_every_device_data(name: str) -> None:
    """Its data can be read, and every device has examples to train on."""
    read_once.cache_clear()  # the file may have changed
    e, data = make_experiment(name), read_once(name)
    e, problem = fit_experiment(e, data)
    split = split_data(e, data, problem)
    expect(all(len(part) for part in split.parts), "a device has no examples")
    expect(len(split.test) > 0, "there is nothing to test on")


def measures(name: str) -> None:
    """Its loss and its metrics are numbers after training."""
    _, records = train(name)
    for metric, value in records[-1].metrics.items():
        known = value is not None and math.isfinite(value)
        expect(known or metric.endswith(("_slow", "_worst")), f"{metric} is {value}")


def trains_with_every_method(name: str) -> None:
    """It trains with every method that takes its optimiser, completed, to finite weights."""
    plain = make_experiment(name).local_optimizer == "sgd"
    for method in names_of("method"):
        if not plain and find("method", method).needs_sgd:
            continue
        state, _ = train(name, method=method, stragglers="complete")
        expect(torch.isfinite(state.w).all(), f"weights are not finite with {method}")


def repeats_on_all_backends(name: str) -> None:
    """The same seed gives the same weights, bit for bit, in one process and in several."""
    first = train(name)[0].w
    read_once.cache_clear()  # data() is called again, as in a run that is resumed
    again, pool = (train(name, backend=backend, workers=2)[0].w for backend in ("serial", "pool"))
    expect(torch.equal(first, again), "two runs differ: is there hidden state, or a draw that has no seed?")
    expect(torch.equal(first, pool), "serial and pool differ: does data() or model() depend on the process?")


CHECKS = [gives_every_device_data, measures, trains_with_every_method, repeats_on_all_backends]
