"""What runs beside the SuperLink: a Flower ServerApp that is a federation's aggregator, and keeps its run folder."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final, overload

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlga.backends.flower.nodes import FlowerBackend
from fedlga.core.settings import BadInput
from fedlga.experiments.config import OWN, Experiment
from fedlga.experiments.flower_client import node_options
from fedlga.experiments.measures import format_metric
from fedlga.experiments.run import MAY_CHANGE, load_for_resume, run_and_record
from fedlga.experiments.simulation import (
    Simulation,
    create_fleet,
    fit_experiment,
    local_steps,
    make_federation,
    make_start,
    split_data,
)
from fedlga.experiments.superlink import DONE, FAILED, RECORD
from fedlga.learning.evaluation import Evaluator, TestSet, make_device_evaluator
from fedlga.learning.reading import read_data, read_task_data
from fedlga.learning.task import Task, load_task

if TYPE_CHECKING:
    from fedlga.core.types import Record


def server_app(
    model: Callable[[], torch.nn.Module] | None = None,
    test_data: Callable[[], Any] | None = None,
    *,
    task: Task | str | Path | None = None,
) -> ServerApp:
    """Return a Flower ServerApp that federates your task, your model tested on your data, or what the experiment names.

    `task` is a task or its file; the joint model is tested on the test data of its data(). The run's
    configuration holds the experiment: its fields by their names, and `out`, the run folder (`resume`: continue it).
    The folder is where this app runs, beside the SuperLink.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # pyright: ignore[reportUnusedFunction]
        logging.getLogger("flwr").setLevel(logging.WARNING)  # otherwise it logs a line for each poll
        config = dict(context.run_config)
        folder = Path(str(config.get("out") or f"runs/run-{context.run_id}"))
        resume = bool(config.get("resume", False))
        own = None
        try:
            if task is not None:
                own = task if isinstance(task, Task) else load_task(str(task))
            elif model is not None and test_data is not None:
                own = Task(model, test_data)
            e = read_experiment(config, own)
            if resume and own:  # what the run was started with, except for what may change
                e = load_for_resume(folder, {name: config[name] for name in MAY_CHANGE if name in config})
            opening = None if own is None else open_own_federation(e, grid, own, only_tests=task is None)
            data_dir = str(config.get("data_dir") or "") or None
            for record in run_and_record(e, folder, resume=resume, data_dir=data_dir, grid=grid, simulation=opening):
                _print(RECORD + json.dumps(record.as_dict()) if own is None else describe_round(record, e.rounds))
        except BadInput as error:
            _print(FAILED + str(error))
            raise
        _print(f"run folder: {folder.resolve()}" if own else DONE + str(folder.resolve()))

    return app


def read_experiment(config: Mapping[str, Any], own: Task | None) -> Experiment:
    """Return the experiment in a run's configuration: as TOML, or field by field."""
    if text := config.get("experiment"):
        return Experiment.from_toml(str(text))
    start, base = Experiment(), {"backend": "flower"}
    if own is not None:
        base |= {"dataset": OWN, "model": OWN, "fleet": "real", "deadline": 60.0}
    if own is not None and own.source:
        start = Experiment(task=own.source).changed(own.experiment)
    return start.changed(start.select_known({**base, **config}))


def describe_round(record: Record, rounds: int) -> str:
    """Return a round as a line of the log."""
    name, value = next(iter(record.metrics.items()), ("loss", None))
    measured = "" if value is None else f"  {name} {format_metric(name, value)}"
    work = " ".join(
        f"{device}:{done}/{asked}"
        for device, done, asked in zip(record.devices, record.steps, record.steps_asked, strict=True)
    )
    trouble = "".join(f"; refused device {device}: {why}" for device, why in record.refused.items())
    trouble += f"; late: {' '.join(map(str, record.late))}" if record.late else ""
    trouble += f"; {record.note}" if record.note else ""
    return f"round {record.round}/{rounds}{measured}  {record.seconds:.1f} s  steps {work}{trouble}"


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # Flower shows it to those who follow the run


@contextmanager
def open_own_federation(e: Experiment, grid: Grid, task: Task, *, only_tests: bool) -> Generator[Simulation]:
    """Build a federation of real devices that have their own data.

    `only_tests`: the task's data() returns nothing but test data; otherwise it returns what a device's would, too.
    """
    given = read_data(task, task.call("data")) if only_tests else read_task_data(task)
    e, problem = fit_experiment(e, given)
    if only_tests or given.test is not None:
        test, ranges = (given.train if only_tests else given.test), None
    else:
        split = split_data(e, given, problem)
        test, ranges = split.test, split.ranges
    assert test is not None
    setup = {"experiment": e.to_toml()}
    backend = FlowerBackend(grid, TestSet(problem, test, e.resize), setup, node_options(e))
    backend.wait_for_all(e.grace)
    examples = _PerDevice(backend, e.devices, lambda count: count)
    steps = _PerDevice(backend, e.devices, lambda count: local_steps(e, count))
    fleet = create_fleet(e, steps, None, problem.model)
    evaluator = Evaluator(problem.metrics, test, backend.slow, ranges=ranges)
    if e.evaluate_on == "devices":
        evaluator = make_device_evaluator(problem.metrics, e.target_metric, e.devices, backend.slow)
    federation = make_federation(e, fleet, backend, evaluator, examples)
    yield Simulation(e, federation, make_start(problem.model), problem.model, None)


@final
class _PerDevice(Sequence[int]):
    """A number for each device, computed from the examples that its node reported; later nodes are included."""

    def __init__(self, backend: FlowerBackend, devices: int, compute: Callable[[int], int]) -> None:
        self._backend, self._devices, self._compute = backend, devices, compute

    def __len__(self) -> int:
        return self._devices

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        examples = self._backend.examples
        chosen = range(self._devices)[index]
        if isinstance(chosen, range):
            return [self._compute(examples.get(device, 0)) for device in chosen]
        return self._compute(examples.get(chosen, 0))


app = server_app()  # for experiments that name their model and data
