"""From an experiment to a federation on this machine."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedlga.backends.pool.backend import PoolBackend
from fedlga.backends.pool.workers import Workers
from fedlga.backends.serial import SerialBackend
from fedlga.core.aggregator import Aggregator
from fedlga.core.backend import Backend
from fedlga.core.fleet import Fleet, Workload
from fedlga.core.process import count_cores, one_thread
from fedlga.core.registry import create
from fedlga.core.round import Federation, run_rounds
from fedlga.core.types import Record, ServerState
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import is_finished
from fedlga.learning.datasets.base import Data
from fedlga.learning.datasets.cache import cache_folder, load
from fedlga.learning.evaluation import Evaluator, TestSet
from fedlga.learning.models import FlatModel, make_model
from fedlga.learning.partitions.base import count_classes, make_parts
from fedlga.learning.training import Devices, TrainingOptions, steps_in_epoch

if TYPE_CHECKING:
    from fedlga.backends.flower.ray import MessageGrid
    from fedlga.core.types import Array
    from fedlga.learning.datasets.sources import Progress


@dataclass(frozen=True)
class Simulation:
    """A federation ready to run, with its starting point and the model that its vector belongs to."""

    federation: Federation
    start: ServerState
    model: FlatModel
    devices: Devices | None  # None: real devices, which keep their data to themselves


def rounds(experiment: Experiment, *, data_dir: str | Path | None = None) -> Iterator[Record]:
    """Run an experiment round by round, in memory: nothing is written.

    Between rounds, in the caller's loop, torch has the number of threads it had before.
    """
    records: list[Record] = []
    with simulate(experiment, data_dir=data_dir) as simulation:
        for _, record in run_rounds(simulation.federation, simulation.start, experiment.rounds):
            yield record
            records.append(record)
            if is_finished(experiment, records):
                return


@contextmanager
def simulate(
    experiment: Experiment,
    *,
    data_dir: str | Path | None = None,
    data: Data | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    grid: MessageGrid | None = None,
) -> Generator[Simulation]:
    """Build everything that an experiment needs, for as long as the `with` lasts.

    A caller that runs many experiments can pass in `data` and `workers`. `grid` is for backend flower: the nodes of a
    SuperLink; without it the nodes are simulated.
    """
    e = experiment.resolved()
    with ExitStack() as closing:
        if e.backend != "pool":
            workers = None
        elif workers is None:  # they import torch while the data is read
            workers = Workers(worker_count(e))
            closing.callback(workers.close)
        with one_thread():
            data = data or load_data(e, data_dir, progress)
            parts = split_data(e, data)
            fleet = make_fleet(e, data, parts)
            model = make_model(e.model, input_shape(e, data), data.classes, e.seed)
        start = ServerState(round=0, w=model.vector.clone())
        devices = make_devices(e, model, data.train_images, data.train_labels, parts)
        test_set = TestSet(model, data.test_images, data.test_labels, e.resize)
        limit = e.memory_limit * 1e9
        if e.backend == "flower":
            from fedlga.experiments.flower_client import connect

            backend: Backend = closing.enter_context(connect(e, test_set, data_dir, worker_count(e), grid))
        elif workers is None:
            backend = SerialBackend(devices, test_set, limit)
        else:
            known = _describe_model(e, data)
            backend = PoolBackend(devices, test_set, workers, known, e.cohort, audit=e.audit, memory_limit=limit)
        closing.callback(backend.close)
        held = torch.from_numpy(count_classes(parts, data.train_labels.numpy(), data.classes))
        evaluator = Evaluator(data.test_labels, held, fleet.always_slow())
        federation = make_federation(e, fleet, backend, evaluator, [len(part) for part in parts])
        yield Simulation(federation, start, model, devices)


def make_devices(
    e: Experiment, model: FlatModel, images: torch.Tensor, labels: torch.Tensor, parts: Sequence[Array]
) -> Devices:
    """Return the devices of an experiment, wherever they run."""
    options = TrainingOptions(e.batch_size, e.augment, e.resize, e.clip, e.fast)
    return Devices(create("method", e.method, e.settings("method")), model, images, labels, parts, options)


def make_aggregator(e: Experiment) -> Aggregator:
    """Return what decides what becomes of updates."""
    kinds = ("method", "policy", "aggregation", "optimizer")
    return Aggregator(*(create(kind, e.name_of(kind), e.settings(kind)) for kind in kinds))


def make_federation(
    e: Experiment, fleet: Fleet, backend: Backend, evaluator: Evaluator, examples: Sequence[int]
) -> Federation:
    """Return the federation of an experiment, wherever its devices run."""
    return Federation(
        aggregator=make_aggregator(e),
        fleet=fleet,
        backend=backend,
        evaluate=evaluator.evaluate,
        examples=examples,
        cohort=e.cohort,
        lr=e.lr,
        lr_decay=e.lr_decay,
        momentum=e.momentum,
        seed=e.seed,
        replacement=e.sampling == "with-replacement",
        by_examples=e.averaging == "examples",
        evaluate_every=e.evaluate_every,
        audit=e.audit,
    )


def check_fit(experiment: Experiment, data: Data) -> None:
    """Raise BadInput if the experiment cannot start: its partition, fleet and model must fit its data."""
    make_fleet(experiment, data, split_data(experiment, data))
    make_model(experiment.model, input_shape(experiment, data), data.classes, experiment.seed)


def worker_count(experiment: Experiment) -> int:
    """Return the processes of the pool: as asked, or one a core; never more than devices in a round."""
    return min(experiment.workers or count_cores(), experiment.cohort)


def load_data(e: Experiment, data_dir: str | Path | None = None, progress: Progress | None = None) -> Data:
    """Return the experiment's dataset."""
    settings = e.settings("dataset")
    return load(e.dataset, cache_folder(data_dir), settings=settings, normalise=e.normalise, progress=progress)


def input_shape(e: Experiment, data: Data) -> tuple[int, int, int]:
    """Return channels, height and width of the images that the model gets."""
    channels, height, width = data.shape
    return (channels, e.resize, e.resize) if e.resize else (channels, height, width)


def split_data(e: Experiment, data: Data) -> list[Array]:
    """Return who holds what."""
    partition = create("partition", e.partition, e.settings("partition"))
    return make_parts(partition, data.train_labels.numpy(), data.classes, e.devices, e.seed)


def make_fleet(experiment: Experiment, data: Data, parts: Sequence[Array]) -> Fleet:
    """Return who is slow."""
    e = experiment.resolved()
    held = count_classes(parts, data.train_labels.numpy(), data.classes)
    return create_fleet(e, [local_steps(e, len(part)) for part in parts], held)


def create_fleet(e: Experiment, steps: Sequence[int], held: Array | None) -> Fleet:
    """Return the fleet of a resolved experiment whose devices are asked for these steps."""
    assert e.deadline is not None
    workload = Workload(e.seed, steps, e.epochs, e.deadline, e.dropout, held)
    return create("fleet", e.fleet, e.settings("fleet"), workload=workload)


def local_steps(e: Experiment, examples: int) -> int:
    """Return the SGD steps that a device with so many examples is asked for in a round."""
    return e.epochs * steps_in_epoch(examples, e.batch_size, e.steps_per_epoch)


def _describe_model(e: Experiment, data: Data) -> dict[str, Any]:
    """Return what a worker needs to make the same model and method."""
    method = {"method": e.method, "settings": e.settings("method"), "model": e.model}
    return {**method, "shape": input_shape(e, data), "classes": data.classes, "seed": e.seed}
