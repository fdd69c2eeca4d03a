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
from fedlga.experiments.simulation import input_shape, load_data, make_devices, split_data
from fedlga.learning.evaluation import TestSet
from fedlga.learning.models import make_model, make_own_model
from fedlga.learning.training import Devices

NodeConfig = Mapping[str, Any]
Examples = tuple[torch.Tensor, torch.Tensor]  # images and labels


@dataclass(frozen=True)
class Own:
    """A user's own model and data. The data stays on the node."""

    model: Callable[[], torch.nn.Module]
    train_data: Callable[[NodeConfig], Examples]


def client_app(
    model: Callable[[], torch.nn.Module] | None = None, train_data: Callable[[NodeConfig], Examples] | None = None
) -> ClientApp:
    """Return a Flower ClientApp for a device: with your model and data, or those that the experiment names.

    The node's configuration may say: device (its number; partition-id does as well), state-dir (where it keeps what it
    remembers), data-dir (of the experiment's dataset), seconds-per-step (a step takes at least that: to try out slow
    devices).
    """
    app = ClientApp()
    own = Own(model, train_data) if model is not None and train_data is not None else None

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
    if own is None:
        devices = _named_devices(text, str(setup.get("data_dir") or config.get("data-dir") or ""))
    else:
        devices = _own_devices(text, own, tuple(sorted(config.items())))
    return replace(devices, pace=float(config.get("seconds-per-step", 0.0)))


@lru_cache(maxsize=1)
def _named_devices(text: str, folder: str) -> Devices:
    """Return all devices of an experiment: its data is public, and this node uses its own part."""
    e = Experiment.from_toml(text)
    data = load_data(e, folder or None)
    model = make_model(e.model, input_shape(e, data), data.classes, e.seed)
    return make_devices(e, model, data.train_images, data.train_labels, split_data(e, data))


@lru_cache(maxsize=1)
def _own_devices(text: str, own: Own, config: tuple[tuple[str, Any], ...]) -> Devices:
    e = Experiment.from_toml(text)
    images, labels = own.train_data(dict(config))
    others = [np.arange(0)] * device_number(dict(config))
    model = make_own_model(own.model, images, labels, e.seed, e.resize)
    return make_devices(e, model, images, labels, [*others, np.arange(len(labels))])


def _memory_file(message: Message, context: Context) -> MemoryFile:
    """Return where this device's memory is: if simulated, in the aggregator's folder; if real, on its own disk."""
    setup = message.content.config_records[SETUP]
    counted = int(str(setup["counted"]))
    if folder := setup.get("memory"):
        return MemoryFile(Path(str(folder)), counted)
    return own_memory_file(context, str(setup["name"]), counted)


@contextmanager
def connect(
    e: Experiment, test_set: TestSet, data_dir: str | Path | None, workers: int, grid: MessageGrid | None
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
            grid = closing.enter_context(simulate_grid(e.devices, workers, app))
            backend = FlowerBackend(grid, test_set, setup, node_options(e), store=store, strict=True)
            backend.wait_for_all(e.patience)  # all of them come, but a busy machine takes long to start Ray
        yield backend


def node_options(e: Experiment) -> NodeOptions:
    """Return what the backend needs to know of an experiment."""
    method, policy = find("method", e.method), find("policy", e.policy)
    return NodeOptions(e.devices, method.uploads, e.grace, e.patience, policy.uses_unfinished)


app = client_app()  # for experiments that name their model and data
