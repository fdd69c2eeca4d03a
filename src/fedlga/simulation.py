"""From an experiment to a federation on this machine."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from .backends.pool import Pool, Workers
from .backends.serial import Serial
from .data.augment import resized
from .data.datasets import Data, cache_folder, load
from .data.partition import partition
from .experiment import Experiment
from .federation import Federation
from .federation import rounds as federation_rounds
from .fleet import Fleet, PaperFleet, SpeedFleet, log_normal_speeds, read_trace
from .local import Devices, steps_in_epoch
from .methods import make_method
from .models import FlatModel, make_model
from .stragglers import make_policy
from .types import Record, Server

if TYPE_CHECKING:
    from .data.sources import Progress
    from .types import Array, Vector

EVALUATION_BATCH = 2000


@dataclass(frozen=True)
class Simulation:
    """A federation ready to run, with its starting point and the model its vector belongs to."""

    federation: Federation
    start: Server
    model: FlatModel
    devices: Devices


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
) -> Generator[Simulation]:
    """Everything an experiment needs, for as long as the `with` lasts.

    `data` and `workers` may be handed in by whoever runs many experiments.
    """
    e = experiment.resolved()
    if e.backend != "pool":
        workers = None
    own = Workers(worker_count(e)) if e.backend == "pool" and workers is None else None
    try:  # the workers import torch while the data is read
        data = data or load_data(e, data_dir, progress)
        parts = make_parts(e, data)
        fleet = make_fleet(e, [len(part) for part in parts])
        model = make_model(e.model, input_shape(e, data), data.classes, e.seed)
        start = Server(round=0, w=model.vector.clone())
        devices = Devices(
            method=make_method(e.method, dict(e.options.get(e.method, {}))),
            model=model,
            images=data.train_images,
            labels=data.train_labels,
            parts=parts,
            batch_size=e.batch_size,
            augment=e.augment,
            resize=e.resize,
            clip=e.clip,
        )
        crew = workers or own
        backend = Serial(devices) if crew is None else Pool(devices, crew, _setup(e, data), slots=e.cohort)
        try:
            federation = Federation(
                method=devices.method,
                policy=make_policy(e.policy, dict(e.options.get(e.policy, {}))),
                fleet=fleet,
                backend=backend,
                evaluate=lambda w: evaluate(model, w, data.test_images, data.test_labels, e.resize),
                examples=[len(part) for part in parts],
                cohort=e.cohort,
                lr=e.lr,
                lr_decay=e.lr_decay,
                momentum=e.momentum,
                seed=e.seed,
                replacement=e.sampling == "with-replacement",
                by_examples=e.averaging == "examples",
                evaluate_every=e.evaluate_every,
            )
            yield Simulation(federation, start, model, devices)
        finally:
            backend.close()
    finally:
        if own is not None:
            own.close()


def check(experiment: Experiment, data: Data) -> None:
    """Whether this experiment can start at all: its partition, fleet and model fit its data."""
    parts = make_parts(experiment, data)
    make_fleet(experiment, [len(part) for part in parts])
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
    )


def make_fleet(experiment: Experiment, examples: list[int]) -> Fleet:
    """Who is slow."""
    e = experiment.resolved()
    assert e.deadline is not None
    assert e.tau_max is not None
    work = [e.epochs * steps_in_epoch(count, e.batch_size, e.steps_per_epoch) for count in examples]
    if e.fleet == "trace":
        return read_trace(
            Path(e.trace or ""), seed=e.seed, work=work, epochs=e.epochs, deadline=e.deadline, dropout=e.dropout
        )
    if e.fleet == "speeds":
        speeds = e.speeds or log_normal_speeds(e.seed, e.devices, e.speed_median, e.speed_sigma)
        return SpeedFleet(e.seed, work, e.epochs, e.deadline, e.dropout, speeds)
    rho = e.rho if e.fleet == "paper" else 0.0
    return PaperFleet(e.seed, work, e.epochs, e.deadline, e.dropout, rho, e.tau_min, e.tau_max)


def evaluate(
    model: FlatModel, w: Vector, images: torch.Tensor, labels: torch.Tensor, resize: int = 0
) -> tuple[float, float]:
    """Accuracy and mean loss of weights `w` on some data."""
    model.vector.copy_(w)
    model.module.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(labels), EVALUATION_BATCH):
            batch = slice(start, start + EVALUATION_BATCH)
            scores = model.module(resized(images[batch], resize))
            right += int((scores.argmax(1) == labels[batch]).sum())
            loss += float(cross_entropy(scores, labels[batch], reduction="sum"))
    model.module.train()
    return right / len(labels), loss / len(labels)


def _setup(e: Experiment, data: Data) -> dict[str, object]:
    """What a worker needs to know to make the same devices."""
    options = dict(e.options.get(e.method, {}))
    names = {"method": e.method, "options": options, "model": e.model}
    return {**names, "shape": input_shape(e, data), "classes": data.classes, "seed": e.seed}
