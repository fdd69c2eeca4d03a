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
from fedlga.core.types import ServerState
from fedlga.experiments.config import OWN, Experiment
from fedlga.experiments.flower_client import node_options
from fedlga.experiments.run import MAY_CHANGE, load_for_resume, run_and_record
from fedlga.experiments.simulation import Simulation, create_fleet, local_steps, make_federation
from fedlga.experiments.superlink import DONE, FAILED, RECORD
from fedlga.learning.evaluation import Evaluator, TestSet
from fedlga.learning.models import make_own_model

if TYPE_CHECKING:
    from fedlga.core.types import Record

Examples = tuple[torch.Tensor, torch.Tensor]  # images and labels


def server_app(
    model: Callable[[], torch.nn.Module] | None = None, test_data: Callable[[], Examples] | None = None
) -> ServerApp:
    """Return a Flower ServerApp that federates your model, tested on your data, or those that the experiment names.

    The run's configuration holds the experiment: its fields by their names, and `out`, the run folder (`resume`:
    continue it). The folder is where this app runs, beside the SuperLink.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # pyright: ignore[reportUnusedFunction]
        logging.getLogger("flwr").setLevel(logging.WARNING)  # otherwise it logs a line for each poll
        config = dict(context.run_config)
        folder = Path(str(config.get("out") or f"runs/run-{context.run_id}"))
        resume = bool(config.get("resume", False))
        own = model is not None and test_data is not None
        try:
            e = read_experiment(config, own=own)
            if resume and own:  # what the run was started with, except for what may change
                e = load_for_resume(folder, {name: config[name] for name in MAY_CHANGE if name in config})
            opening = open_own_federation(e, grid, model, test_data) if own else None
            data_dir = str(config.get("data_dir") or "") or None
            for record in run_and_record(e, folder, resume=resume, data_dir=data_dir, grid=grid, simulation=opening):
                _print(RECORD + json.dumps(record.as_dict()) if not own else describe_round(record, e.rounds))
        except BadInput as error:
            _print(FAILED + str(error))
            raise
        _print(f"run folder: {folder.resolve()}" if own else DONE + str(folder.resolve()))

    return app


def read_experiment(config: Mapping[str, Any], *, own: bool) -> Experiment:
    """Return the experiment in a run's configuration: as TOML, or field by field."""
    if text := config.get("experiment"):
        return Experiment.from_toml(str(text))
    base: dict[str, Any] = {"backend": "flower"}
    if own:
        base |= {"dataset": OWN, "model": OWN, "fleet": "real", "deadline": 60.0}
    return Experiment().changed(Experiment().select_known({**base, **config}))


def describe_round(record: Record, rounds: int) -> str:
    """Return a round as a line of the log."""
    accuracy = "" if record.accuracy is None else f"  accuracy {record.accuracy:.1%}"
    work = " ".join(
        f"{device}:{done}/{asked}"
        for device, done, asked in zip(record.devices, record.steps, record.steps_asked, strict=True)
    )
    trouble = "".join(f"; refused device {device}: {why}" for device, why in record.refused.items())
    trouble += f"; late: {' '.join(map(str, record.late))}" if record.late else ""
    trouble += f"; {record.note}" if record.note else ""
    return f"round {record.round}/{rounds}{accuracy}  {record.seconds:.1f} s  steps {work}{trouble}"


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # Flower shows it to those who follow the run


@contextmanager
def open_own_federation(
    e: Experiment,
    grid: Grid,
    model: Callable[[], torch.nn.Module] | None,
    test_data: Callable[[], Examples] | None,
) -> Generator[Simulation]:
    """Build a federation of real devices that have their own data."""
    assert model is not None
    assert test_data is not None
    e = e.resolved()
    images, labels = test_data()
    flat = make_own_model(model, images, labels, e.seed, e.resize)
    backend = FlowerBackend(grid, TestSet(flat, images, labels, e.resize), {"experiment": e.to_toml()}, node_options(e))
    backend.wait_for_all(e.grace)
    examples = _PerDevice(backend, e.devices, lambda count: count)
    steps = _PerDevice(backend, e.devices, lambda count: local_steps(e, count))
    fleet = create_fleet(e, steps, None)
    federation = make_federation(e, fleet, backend, Evaluator(labels, None, []), examples)
    yield Simulation(federation, ServerState(round=0, w=flat.vector.clone()), flat, None)


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
