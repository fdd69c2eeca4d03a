"""What runs beside the SuperLink: a Flower ServerApp that is the aggregator of a federation, run folder and all."""

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

from ..evaluation import Evaluator, Exam
from ..experiment import OWN, Experiment, settings
from ..fleet import RealFleet
from ..local import steps_in_epoch
from ..models import own_model
from ..runs import MAY_CHANGE, recorded, resumable
from ..settings import BadInput
from ..simulation import Simulation, make_federation
from ..types import Server
from .nodes import Nodes, agreed
from .superlink import FAILED, RECORD

if TYPE_CHECKING:
    from ..types import Record

Examples = tuple[torch.Tensor, torch.Tensor]  # images and labels


def server_app(
    model: Callable[[], torch.nn.Module] | None = None, test_data: Callable[[], Examples] | None = None
) -> ServerApp:
    """A Flower ServerApp that federates: your model, tested on your data, or those that the experiment names.

    The run's configuration holds the experiment: its fields by their names, and `out`, the run folder (`resume`: go on
    with it). It lies where this runs, beside the SuperLink.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:  # pyright: ignore[reportUnusedFunction]
        logging.getLogger("flwr").setLevel(logging.WARNING)  # a line a poll is no use to anybody
        config = dict(context.run_config)
        folder = Path(str(config.get("out") or f"runs/run-{context.run_id}"))
        resume = bool(config.get("resume", False))
        own = model is not None and test_data is not None
        try:
            e = experiment_of(config, own=own)
            if resume and own:  # what the run was begun with, but for what may change
                e = resumable(folder, {name: config[name] for name in MAY_CHANGE if name in config})
            making = own_federation(e, grid, model, test_data) if own else None
            data_dir = str(config.get("data_dir") or "") or None
            for record in recorded(e, folder, resume=resume, data_dir=data_dir, grid=grid, simulation=making):
                _say(RECORD + json.dumps(record.as_dict()) if not own else in_words(record, e.rounds))
        except BadInput as error:
            _say(FAILED + str(error))
            raise
        _say(f"run folder: {folder.resolve()}")

    return app


def experiment_of(config: Mapping[str, Any], *, own: bool) -> Experiment:
    """The experiment in a run's configuration: as TOML, or field by field."""
    if text := config.get("experiment"):
        return Experiment.from_toml(str(text))
    known = {f.name for f in settings()}
    changes = {name: value for name, value in config.items() if name in known or "." in name}
    base: dict[str, Any] = {"backend": "flower"}
    if own:
        base |= {"dataset": OWN, "model": OWN, "fleet": "real", "deadline": 60.0}
    return Experiment().changed({**base, **changes})


def in_words(record: Record, rounds: int) -> str:
    """A round in a line of the log."""
    reached = "" if record.accuracy is None else f"  accuracy {record.accuracy:.1%}"
    work = " ".join(
        f"{device}:{done}/{asked}"
        for device, done, asked in zip(record.devices, record.steps, record.steps_asked, strict=True)
    )
    trouble = "".join(f"; refused device {device}: {why}" for device, why in record.refused.items())
    trouble += f"; late: {' '.join(map(str, record.late))}" if record.late else ""
    trouble += f"; {record.note}" if record.note else ""
    return f"round {record.round}/{rounds}{reached}  {record.seconds:.1f} s  steps {work}{trouble}"


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201  # Flower carries it to whoever follows the run


@contextmanager
def own_federation(
    e: Experiment,
    grid: Grid,
    model: Callable[[], torch.nn.Module] | None,
    test_data: Callable[[], Examples] | None,
) -> Generator[Simulation]:
    """A federation of real devices that have their own data."""
    assert model is not None
    assert test_data is not None
    e = e.resolved()
    assert e.deadline is not None
    torch.set_num_threads(1)
    images, labels = test_data()
    flat = own_model(model, images, labels, e.seed, e.resize)
    tests = Exam(flat, images, labels, e.resize)
    nodes = Nodes(grid, tests, {"experiment": e.to_toml()}, **agreed(e))
    nodes.wait_for_all(e.grace)
    examples = _Told(nodes, e.devices, lambda count: count)
    work = _Told(nodes, e.devices, lambda n: e.epochs * steps_in_epoch(n, e.batch_size, e.steps_per_epoch))
    fleet = RealFleet(e.seed, work, e.epochs, e.deadline, 0.0)
    federation = make_federation(e, fleet, nodes, Evaluator(nodes.score, labels, None, []), examples, nodes)
    yield Simulation(federation, Server(round=0, w=flat.vector.clone()), flat, None)


@final
class _Told(Sequence[int]):
    """A number for each device, from what its node told of its examples: those that come later are in it too."""

    def __init__(self, nodes: Nodes, devices: int, of: Callable[[int], int]) -> None:
        self._nodes, self._devices, self._of = nodes, devices, of

    def __len__(self) -> int:
        return self._devices

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        told = self._nodes.examples
        chosen = range(self._devices)[index]
        return (
            [self._of(told.get(d, 0)) for d in chosen] if isinstance(chosen, range) else self._of(told.get(chosen, 0))
        )


app = server_app()  # for experiments that name their model and data
