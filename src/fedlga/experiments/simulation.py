"""From an experiment to a federation on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .backends.pool import Pool, Workers
from .backends.serial import Serial
from .data.datasets import Data, cache_folder, load
from .data.partition import counts, partition
from .evaluation import Evaluator, Exam
from .experiment import Experiment
from .federation import Federation
from .federation import rounds as federation_rounds
from .fleet import Fleet, PaperFleet, RealFleet, SpeedFleet, log_normal_speeds, read_trace, speeds_by_class
from .local import Devices, steps_in_epoch
from .methods import make_method
from .models import FlatModel, make_model
from .stragglers import make_policy
from .tensors import keep_freed_memory
from .types import Backend, Evaluation, Record, Server

if TYPE_CHECKING:
    from .data.sources import Progress
    from .flower.nodes import Nodes
    from .flower.ray import Carrier
    from .types import Array, Vector


@dataclass(frozen=True)
class Simulation:
    """A federation ready to run, with its starting point and the model its vector belongs to."""

    federation: Federation
    start: Server
    model: FlatModel
    devices: Devices | None  # None: real ones, of whom only they know what they have


def rounds(experiment: Experiment, *, data_dir: str | Path | None = None) -> Iterator[Record]:
    """Run an experiment round by round, in memory: nothing is written."""
    with simulate(experiment, data_dir=data_dir) as simulation:
        for _, record in federation_rounds(simulation.federation, simulation.start, experiment.rounds):
            yield record
            if experiment.stop_at_target and record.accuracy is not None and record.accuracy >= experiment.target:
                return


@contextmanager
def simulate(
    experiment: Experiment,
    *,
    data_dir: str | Path | None = None,
    data: Data | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    grid: Carrier | None = None,
) -> Generator[Simulation]:
    """Everything an experiment needs, for as long as the `with` lasts.

    `data` and `workers` may be handed in by whoever runs many experiments. `grid` is for backend flower: the nodes of a
    SuperLink; without one they are simulated.
    """
    e = experiment.resolved()
    if e.backend != "pool":
        workers = None
    own = Workers(worker_count(e)) if e.backend == "pool" and workers is None else None
    keep_freed_memory()
    threads = torch.get_num_threads()
    # The workers have the cores. And sums over one thread have the same last bit on every machine and backend.
    torch.set_num_threads(1)
    try:  # the workers import torch while the data is read
        data = data or load_data(e, data_dir, progress)
        parts = make_parts(e, data)
        fleet = make_fleet(e, data, parts)
        model = make_model(e.model, input_shape(e, data), data.classes, e.seed)
        start = Server(round=0, w=model.vector.clone())
        devices = make_devices(e, model, data.train_images, data.train_labels, parts)
        crew, limit = workers or own, e.memory_limit * 1e9
        tests = Exam(model, data.test_images, data.test_labels, e.resize)
        nodes: Nodes | None = None
        with ExitStack() as closing:
            if e.backend == "flower":
                from .flower.nodes import connected

                nodes = backend = closing.enter_context(connected(e, tests, data_dir, worker_count(e), grid))
            elif crew is None:
                backend = Serial(devices, limit, tests)
            else:
                backend = Pool(devices, tests, crew, _setup(e, data), slots=e.cohort, audit=e.audit, memory_limit=limit)
            closing.callback(backend.close)
            evaluate = Evaluator(
                backend.score,
                data.test_labels,
                torch.from_numpy(counts(parts, data.train_labels.numpy(), data.classes)),
                fleet.always_slow() if isinstance(fleet, SpeedFleet) else [],
            )
            examples = [len(part) for part in parts]
            yield Simulation(make_federation(e, fleet, backend, evaluate, examples, nodes), start, model, devices)
    finally:
        torch.set_num_threads(threads)
        if own is not None:
            own.close()


def make_devices(
    e: Experiment, model: FlatModel, images: torch.Tensor, labels: torch.Tensor, parts: Sequence[Array]
) -> Devices:
    """The devices of an experiment, wherever they are."""
    return Devices(
        method=make_method(e.method, dict(e.options.get(e.method, {}))),
        model=model,
        images=images,
        labels=labels,
        parts=parts,
        batch_size=e.batch_size,
        augment=e.augment,
        resize=e.resize,
        clip=e.clip,
        fast=e.fast,
    )


def make_federation(
    e: Experiment,
    fleet: Fleet,
    backend: Backend,
    evaluate: Callable[[Vector], Evaluation],
    examples: Sequence[int],
    nodes: Nodes | None = None,
) -> Federation:
    """The federation of an experiment, wherever its devices are."""
    federation = Federation(
        method=make_method(e.method, dict(e.options.get(e.method, {}))),
        policy=make_policy(e.policy, dict(e.options.get(e.policy, {}))),
        fleet=fleet,
        backend=backend,
        evaluate=evaluate,
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
    return federation if nodes is None else replace(federation, present=nodes.present, mishaps=nodes.mishaps)


def check(experiment: Experiment, data: Data) -> None:
    """Whether this experiment can start at all: its partition, fleet and model fit its data."""
    parts = make_parts(experiment, data)
    make_fleet(experiment, data, parts)
    make_model(experiment.model, input_shape(experiment, data), data.classes, experiment.seed)


def worker_count(experiment: Experiment) -> int:
    """Processes of the pool: as asked, or one a core; never more than devices in a round."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(experiment.workers or cores, experiment.cohort)


def load_data(e: Experiment, data_dir: str | Path | None = None, progress: Progress | None = None) -> Data:
    """The experiment's dataset, as its model gets it."""
    return load(e.dataset, cache_folder(data_dir), normalise=e.normalise, progress=progress)


def input_shape(e: Experiment, data: Data) -> tuple[int, int, int]:
    """Channels, height and width of the images that the model gets."""
    channels, height, width = data.shape
    return (channels, e.resize, e.resize) if e.resize else (channels, height, width)


def make_parts(e: Experiment, data: Data) -> list[Array]:
    """Who holds what."""
    labels = data.train_labels.numpy()
    return partition(
        e.partition,
        labels,
        e.devices,
        e.seed,
        classes=data.classes,
        classes_per_device=e.classes_per_device,
        alpha=e.partition_alpha,
        examples=e.examples_per_device,
    )


def make_fleet(experiment: Experiment, data: Data, parts: list[Array]) -> Fleet:
    """Who is slow."""
    e = experiment.resolved()
    assert e.deadline is not None
    assert e.tau_max is not None
    work = [e.epochs * steps_in_epoch(len(part), e.batch_size, e.steps_per_epoch) for part in parts]
    if e.fleet == "trace":
        return read_trace(
            Path(e.trace or ""), seed=e.seed, work=work, epochs=e.epochs, deadline=e.deadline, dropout=e.dropout
        )
    if e.fleet == "speeds":
        speeds = e.speeds or log_normal_speeds(e.seed, e.devices, e.speed_median, e.speed_sigma)
        if e.slow_classes:
            held = (counts(parts, data.train_labels.numpy(), data.classes) > 0).tolist()
            speeds = speeds_by_class(held, e.slow_classes, e.speed_median, e.speed_median * e.slow_speed)
        return SpeedFleet(e.seed, work, e.epochs, e.deadline, e.dropout, speeds)
    if e.fleet == "real":
        return RealFleet(e.seed, work, e.epochs, e.deadline, e.dropout)
    rho = e.rho if e.fleet == "paper" else 0.0
    return PaperFleet(e.seed, work, e.epochs, e.deadline, e.dropout, rho, e.tau_min, e.tau_max)


def _setup(e: Experiment, data: Data) -> dict[str, object]:
    """What a worker needs to know to make the same devices."""
    options = dict(e.options.get(e.method, {}))
    names = {"method": e.method, "options": options, "model": e.model}
    return {**names, "shape": input_shape(e, data), "classes": data.classes, "seed": e.seed}
