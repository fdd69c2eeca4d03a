"""What runs on a node: a Flower ClientApp that trains, stops when the time is up, and keeps its own memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlga.backends.flower.messages import NUMBERS, SETUP, pack_update, unpack_assignment
from fedlga.backends.flower.node_memory import device_number, own_memory_file
from fedlga.backends.flower.nodes import FlowerBackend, NodeOptions
from fedlga.backends.flower.ray import MessageGrid, simulate_grid
from fedlga.backends.memory_store import MemoryFile, MemoryStore
from fedlga.backends.shared import SharedFolder
from fedlga.core.registry import find
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.simulation import fit_experiment, load_data, make_devices, split_data
from fedlga.learning.accelerator import choose_device
from fedlga.learning.evaluation import TestSet
from fedlga.learning.problem import fit_task
from fedlga.learning.reading import read_data, read_task_data
from fedlga.learning.task import Task, load_task
from fedlga.learning.training import Devices

NodeConfig = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Own:
    """What a node learns, if its app says so. The data stays on the node."""

    task: Task
    train_data: Callable[[NodeConfig], Any] | None = None  # in place of the task's data: what this device has


def client_app(
    model: Callable[[], torch.nn.Module] | None = None,
    train_data: Callable[[NodeConfig], Any] | None = None,
    *,
    task: Task | str | Path | None = None,
) -> ClientApp:
    """Return a Flower ClientApp for a device: with your task, your model and data, or those that the experiment names.

    `task` is a task or its file. Its data() returns the data of all devices, of which this one takes its part; with
    own-data=true in the node's configuration, all that data() returns here is this device's.

    The node's configuration may say: device (its number; partition-id does as well), state-dir (where it keeps what it
    remembers), data-dir (of the experiment's dataset), seconds-per-step (a step takes at least that: to try out slow
    devices), own-data.
    """
    app = ClientApp()
    own = None
    if task is not None:
        own = Own(task if isinstance(task, Task) else load_task(str(task)))
    elif model is not None and train_data is not None:
        own = Own(Task(model, None), train_data)

    @app.query()
    def identify(message: Message, context: Context) -> Message:
        """Reply which device this is, and how many examples it has."""
        devices = _devices(message, context, own)
        device = device_number(context.node_config)
        numbers = MetricRecord({"device": device, "examples": len(devices.parts[device])})
        return Message(RecordDict({NUMBERS: numbers}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Carry out an assignment, as far as its time allows."""
        started = time.monotonic()
        devices = _devices(message, context, own)
        assignment, device = unpack_assignment(message), device_number(context.node_config)
        if assignment.device != device:
            raise BadInput(f"this is device {device}, and the assignment is for {assignment.device}")
        if assignment.seconds is not None:
            left = assignment.seconds - (time.monotonic() - started)
            assignment = replace(assignment, seconds=max(0.0, left))
        file = _memory_file(message, context)
        before = file.read()
        update, memory = devices.perform(assignment, before)
        if (memory or before) and update.steps:  # an empty memory is stored too: it means the device forgot
            file.write(assignment.round, memory, keep_counted=True)
        return Message(pack_update(update, assignment.round, time.monotonic() - started), reply_to=message)

    return app


def _devices(message: Message, context: Context, own: Own | None) -> Devices:
    torch.set_num_threads(1)
    setup, config = message.content.config_records[SETUP], context.node_config
    text = str(setup["experiment"])
    folder = str(setup.get("data_dir") or config.get("data-dir") or "")
    if own is None or not (own.train_data or config.get("own-data")):
        devices = _shared_devices(text, folder, own)
    else:
        devices = _own_devices(text, own, tuple(sorted(config.items())))
    return replace(devices, pace=float(config.get("seconds-per-step", 0.0)))


@lru_cache(maxsize=1)
def _shared_devices(text: str, folder: str, own: Own | None) -> Devices:
    """Return all devices of an experiment: the data is the same on every node, and this one uses its own part."""
    e = Experiment.from_toml(text)
    data = load_data(e, folder or None, task=None if own is None else own.task)
    e, problem = fit_experiment(e, data)
    split = split_data(e, data, problem)
    return make_devices(e, problem.model, split.train.to(choose_device(e.device)), split.parts)


@lru_cache(maxsize=1)
def _own_devices(text: str, own: Own, config: tuple[tuple[str, Any], ...]) -> Devices:
    """Return this device alone: all examples that it has are its own."""
    e, node = Experiment.from_toml(text), dict(config)
    data = read_task_data(own.task) if own.train_data is None else read_data(own.task, own.train_data(node))
    others = [np.arange(0)] * device_number(node)
    device = choose_device(e.device)
    problem = fit_task(own.task, data.train, e.seed, device=device, resize=e.resize, label_smoothing=e.label_smoothing)
    return make_devices(e, problem.model, data.train.to(device), [*others, np.arange(len(data.train))])


def _memory_file(message: Message, context: Context) -> MemoryFile:
    """Return where this device's memory is: if simulated, in the aggregator's folder; if real, on its own disk."""
    setup = message.content.config_records[SETUP]
    counted = int(str(setup["counted"]))
    if folder := setup.get("memory"):
        return MemoryFile(Path(str(folder)), counted)
    return own_memory_file(context, str(setup["name"]), counted)


@contextmanager
def connect(
    e: Experiment,
    task: Task,
    test_set: TestSet,
    data_dir: str | Path | None,
    workers: int,
    grid: MessageGrid | None,
) -> Generator[FlowerBackend]:
    """Connect to the nodes of an experiment: those of `grid`, or as many simulated ones as it has devices."""
    setup: dict[str, Any] = {"experiment": e.to_toml()}
    with ExitStack() as closing:
        if grid is not None:
            backend = FlowerBackend(grid, test_set, setup, node_options(e))
            backend.wait_for_all(e.grace)
        else:
            shared = SharedFolder()
            closing.callback(shared.close)
            store = MemoryStore(shared, e.memory_limit * 1e9)
            setup |= {"data_dir": str(Path(data_dir).resolve())} if data_dir else {}
            own = None if task.named or task.source else client_app(task=task)  # a file is read by the nodes
            grid = closing.enter_context(simulate_grid(e.devices, workers, own or app))
            backend = FlowerBackend(grid, test_set, setup, node_options(e), store=store, strict=True)
            backend.wait_for_all(e.patience)  # all of them come, but a busy machine takes long to start Ray
        yield backend


def node_options(e: Experiment) -> NodeOptions:
    """Return what the backend needs to know of an experiment."""
    method, policy = find("method", e.method), find("policy", e.policy)
    return NodeOptions(e.devices, method.uploads, e.grace, e.patience, policy.uses_unfinished)


app = client_app()  # for experiments that name their model and data
