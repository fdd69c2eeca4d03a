"""What runs on a node: a Flower ClientApp that does tasks, stops when the time is up, and keeps its own memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from ..experiment import Experiment
from ..local import Devices
from ..models import make_model, own_model
from ..settings import BadInput
from ..simulation import input_shape, load_data, make_devices, make_parts
from ..tensors import load_tensors, save_tensors
from .messages import NUMBERS, SETUP, task_of, update_content

if TYPE_CHECKING:
    from ..types import Memory

NodeConfig = Mapping[str, Any]
Examples = tuple[torch.Tensor, torch.Tensor]  # images and labels


@dataclass(frozen=True)
class Own:
    """A user's own model and data, for who has them: the data stays here."""

    model: Callable[[], torch.nn.Module]
    train_data: Callable[[NodeConfig], Examples]


def client_app(
    model: Callable[[], torch.nn.Module] | None = None, train_data: Callable[[NodeConfig], Examples] | None = None
) -> ClientApp:
    """A Flower ClientApp for a device: with your model and data, or those that the experiment names.

    The node's configuration may say: device (its number; partition-id does as well), state-dir (where it keeps what it
    remembers), data-dir (of the experiment's dataset), seconds-per-step (a step takes at least that: to try out slow
    devices).
    """
    app = ClientApp()
    own = Own(model, train_data) if model is not None and train_data is not None else None

    @app.query()
    def who(message: Message, context: Context) -> Message:
        """Which device this is, and how many examples it has."""
        devices = _devices(message, context, own)
        device = number(context.node_config)
        told = MetricRecord({"device": device, "examples": len(devices.parts[device])})
        return Message(RecordDict({NUMBERS: told}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Do a task, as far as its time allows."""
        started = time.monotonic()
        devices = _devices(message, context, own)
        task = task_of(message)
        if task.device != number(context.node_config):
            raise BadInput(f"this is device {number(context.node_config)}, and the task is for {task.device}")
        if task.seconds is not None:
            task = replace(task, seconds=max(0.0, task.seconds - (time.monotonic() - started)))
        home = _home(message, context)
        before = home.recall()
        update, memory = devices.work(task, before)
        if (memory or before) and update.steps:  # to forget is to remember nothing
            home.remember(task.round, memory)
        return Message(update_content(update, task.round, time.monotonic() - started), reply_to=message)

    return app


def number(config: NodeConfig) -> int:
    """Which device a node is."""
    found = config.get("device", config.get("partition-id"))
    if not isinstance(found, int):
        raise BadInput("node config: it needs device=N, the number of this device")
    return found


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
    """All devices of an experiment: its data is public, and this node uses its own part. Nodes of one process share."""
    e = Experiment.from_toml(text)
    data = load_data(e, folder or None)
    model = make_model(e.model, input_shape(e, data), data.classes, e.seed)
    return make_devices(e, model, data.train_images, data.train_labels, make_parts(e, data))


@lru_cache(maxsize=1)
def _own_devices(text: str, own: Own, config: tuple[tuple[str, Any], ...]) -> Devices:
    e = Experiment.from_toml(text)
    images, labels = own.train_data(dict(config))
    nobody = [np.arange(0)] * number(dict(config))
    model = own_model(own.model, images, labels, e.seed, e.resize)
    return make_devices(e, model, images, labels, [*nobody, np.arange(len(labels))])


class Home:
    """A device's memory on its own disk. It survives a restart of the node, and nobody else sees it.

    A simulated device's lies in a folder that the aggregator sees too, for its checkpoints.

    A file a round, of which two are kept: the last, and the last that *counted*. An update that came too late, was
    refused or dropped moved nothing at the aggregator, and must not have moved the device either; and an aggregator
    that went back to its checkpoint asks for a round again.
    """

    def __init__(self, folder: Path, counted: int) -> None:
        """`counted` is the last round whose update the aggregator used; -1: none yet."""
        self._folder, self._counted = folder, counted

    def recall(self) -> Memory:
        """What the device remembered after the round that counted."""
        file = self._folder / f"{self._counted}.safetensors"
        if self._counted >= 0 and not file.exists() and any(self._folder.glob("*.safetensors")):
            raise BadInput(f"what this device remembered of round {self._counted} is gone: {file}")
        return load_tensors(file)[0] if self._counted >= 0 and file.exists() else {}

    def remember(self, round: int, memory: Memory) -> None:
        """Keep what it remembers after this round."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        save_tensors(self._folder / f"{round}.safetensors", memory)
        for file in self._folder.glob("*.safetensors"):
            if int(file.stem) not in (round, self._counted):
                file.unlink(missing_ok=True)


def _home(message: Message, context: Context) -> Home:
    setup = message.content.config_records[SETUP]
    counted = int(str(setup["counted"]))
    if folder := setup.get("memory"):
        return Home(Path(str(folder)) / str(number(context.node_config)), counted)
    return home_of(context, str(setup["name"]), counted)


def home_of(context: Context, name: str, counted: int) -> Home:
    """Where this node keeps what it remembers of the run that is called `name`."""
    if not name.isalnum():
        raise BadInput(f"the run's name is {name!r}; it takes letters and digits")
    state = context.node_config.get("state-dir")
    default = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedlga"
    who = context.node_config.get("device", context.node_config.get("partition-id", context.node_id))
    mine = default / f"device-{who}"  # by its number, if it has one: a node without a key gets a new id at every start
    return Home((Path(str(state)) if state else mine) / name, counted)


app = client_app()  # for experiments that name their model and data
