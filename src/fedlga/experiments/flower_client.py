"""What runs on a node: a Flower ClientApp that trains, stops when the time is up, and keeps its own memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlga.backends.flower.device_tests import pack_sums, unpack_test
from fedlga.backends.flower.messages import NUMBERS, SETUP, pack_update, unpack_assignment
from fedlga.backends.flower.node_limits import NodeLimits
from fedlga.backends.flower.node_memory import device_number, own_memory_file
from fedlga.backends.flower.nodes import FlowerBackend, NodeOptions
from fedlga.backends.flower.ray import MessageGrid, simulate_grid
from fedlga.backends.memory_store import MemoryFile, MemoryStore
from fedlga.backends.shared import SharedFolder
from fedlga.core.aggregator import BUFFERS
from fedlga.core.registry import find
from fedlga.core.settings import BadInput
from fedlga.core.text import clean_text
from fedlga.core.types import Assignment
from fedlga.experiments.config import Experiment
from fedlga.experiments.simulation import fit_experiment, load_data, make_devices, split_data
from fedlga.learning.accelerator import choose_device
from fedlga.learning.evaluation import TestSet
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.problem import fit_task
from fedlga.learning.reading import read_data, read_task_data
from fedlga.learning.splitting import hold_out
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
    modules: Sequence[str] = (),
) -> ClientApp:
    """Return a Flower ClientApp for a device: with your task, your model and data, or those that the experiment names.

    `task` is a task or its file. Its data() returns the data of all devices, of which this one takes its part; with
    own-data=true in the node's configuration, all that data() returns here is this device's.

    An experiment may name what comes with fedlga, and parts in `modules`, which come with the app.

    The node's configuration may say: device (its number; partition-id does as well), state-dir (where it keeps what it
    remembers), data-dir (of the experiment's dataset), seconds-per-step (a step takes at least that: to try out slow
    devices), own-data; and what the node takes from a message at most (`node_limits.py`): most-steps, most-seconds,
    most-megabytes, modules.
    """
    own = None
    if task is not None:
        own = Own(task if isinstance(task, Task) else load_task(str(task)))
    elif model is not None and train_data is not None:
        own = Own(Task(model, None), train_data)
    return _make_app(own, tuple(modules))


def _make_app(own: Own | None, modules: tuple[str, ...] = (), *, simulated: bool = False) -> ClientApp:
    """Return the app of a device. A simulated one belongs to the aggregator, and takes anything from it."""
    app = ClientApp()

    def open_message(message: Message, context: Context) -> tuple[NodeLimits, Devices, TestSet | None]:
        limits, setup = NodeLimits.read(context.node_config, modules), message.content.config_records[SETUP]
        if not simulated:
            limits.check_message(message, setup)
            limits.check_experiment(str(setup["experiment"]), own_task=own is not None)
        return limits, *_devices(setup, context.node_config, own)

    @app.query()
    def identify(message: Message, context: Context) -> Message:
        """Reply which device this is, and how many examples it has."""
        _, devices, _ = open_message(message, context)
        device = device_number(context.node_config)
        numbers = MetricRecord({"device": device, "examples": len(devices.parts[device])})
        return Message(RecordDict({NUMBERS: numbers}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Carry out an assignment, as far as its time allows."""
        started = time.monotonic()
        limits, devices, _ = open_message(message, context)
        assignment, device = unpack_assignment(message), device_number(context.node_config)
        check_fit(assignment, devices.model)
        assignment = assignment if simulated else limits.limit(assignment)
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

    @app.evaluate()
    def test(message: Message, context: Context) -> Message:
        """Test weights on what this device holds out."""
        _, devices, test_set = open_message(message, context)
        device, (w, buffers) = device_number(context.node_config), unpack_test(message)
        if test_set is None or test_set.ranges is None:
            raise BadInput("this device holds out nothing to test on")
        check_vectors({"w": w} | ({} if buffers is None else {BUFFERS: buffers}), devices.model)
        start, end = test_set.ranges[device]
        return Message(pack_sums(device, test_set, test_set.score(w, buffers, start, end)), reply_to=message)

    return app


def check_fit(assignment: Assignment, model: FlatModel) -> None:
    """Refuse an assignment that is not for this model."""
    buffers = {} if assignment.buffers is None else {BUFFERS: assignment.buffers}
    check_vectors({"w": assignment.w, **assignment.broadcast, **buffers}, model)
    if not 0 < assignment.steps <= assignment.steps_asked:
        raise BadInput(f"assignment: {assignment.steps} steps of {assignment.steps_asked}")
    if not 0 <= (assignment.exponent or 0.0) <= 1:
        raise BadInput(f"assignment: the exponent is {assignment.exponent}; it takes 0 to 1")


def check_vectors(vectors: Mapping[str, torch.Tensor], model: FlatModel) -> None:
    """Refuse vectors that are not the model's: compiled code takes their length for granted."""
    buffers = model.read_buffers()
    for name, vector in vectors.items():
        length = len(model.vector) if name != BUFFERS else 0 if buffers is None else len(buffers)
        if vector.shape != (length,) or vector.dtype != torch.float32:
            shape = " x ".join(map(str, vector.shape))
            raise BadInput(f"message: {clean_text(name, 50)} is {shape} of {vector.dtype}, and the model {length}")


def _devices(setup: NodeConfig, config: NodeConfig, own: Own | None) -> tuple[Devices, TestSet | None]:
    torch.set_num_threads(1)
    text = str(setup["experiment"])
    folder = str(setup.get("data_dir") or config.get("data-dir") or "")
    if own is None or not (own.train_data or config.get("own-data")):
        devices, test_set = _shared_devices(text, folder, own)
    else:
        devices, test_set = _own_devices(text, own, tuple(sorted(config.items())))
    return replace(devices, pace=float(config.get("seconds-per-step", 0.0))), test_set


@lru_cache(maxsize=1)
def _shared_devices(text: str, folder: str, own: Own | None) -> tuple[Devices, TestSet | None]:
    """Return all devices of an experiment: the data is the same on every node, and this one uses its own part."""
    e = Experiment.from_toml(text)
    data = load_data(e, folder or None, task=None if own is None else own.task)
    e, problem = fit_experiment(e, data)
    split = split_data(e, data, problem)
    device = choose_device(e.device)
    devices = make_devices(e, problem.model, split.train.to(device), split.parts)
    return devices, TestSet(problem, split.test.to(device), e.resize, split.ranges)


@lru_cache(maxsize=1)
def _own_devices(text: str, own: Own, config: tuple[tuple[str, Any], ...]) -> tuple[Devices, TestSet | None]:
    """Return this device alone: all examples that it has are its own.

    If devices test the model, it does so on the test data that its data() returns, or else on a fifth of its own,
    which it does not train on.
    """
    e, node = Experiment.from_toml(text), dict(config)
    data = read_task_data(own.task) if own.train_data is None else read_data(own.task, own.train_data(node))
    number, device = device_number(node), choose_device(e.device)
    problem = fit_task(own.task, data.train, e.seed, device=device, resize=e.resize, label_smoothing=e.label_smoothing)
    nothing = [np.arange(0)] * number
    train, test, part = data.train, data.test, np.arange(len(data.train))
    if e.evaluate_on == "devices" and test is None:
        tested, part = hold_out(e.seed, number, part)
        test = train.take(tested)
    test_set = None
    if e.evaluate_on == "devices" and test is not None:
        test_set = TestSet(problem, test.to(device), e.resize, [*[(0, 0)] * number, (0, len(test))])
    return make_devices(e, problem.model, train.to(device), [*nothing, part]), test_set


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
            own = None if task.named or task.source else _make_app(Own(task), simulated=True)
            # A task's file is read by the nodes.
            grid = closing.enter_context(simulate_grid(e.devices, workers, own or simulated_app))
            backend = FlowerBackend(grid, test_set, setup, node_options(e), store=store, strict=True)
            backend.wait_for_all(e.patience)  # all of them come, but a busy machine takes long to start Ray
        yield backend


def node_options(e: Experiment) -> NodeOptions:
    """Return what the backend needs to know of an experiment."""
    method, policy = find("method", e.method), find("policy", e.policy)
    seconds = None
    if e.evaluate_on == "devices":
        real = find("fleet", e.fleet).real and not policy.waits
        seconds = (e.deadline or float(e.epochs)) + e.grace if real else e.patience
    return NodeOptions(e.devices, method.uploads, e.grace, e.patience, policy.uses_unfinished, e.bind_devices, seconds)


app = client_app()  # for experiments that name their model and data
simulated_app = _make_app(None, simulated=True)  # for those in a simulation
