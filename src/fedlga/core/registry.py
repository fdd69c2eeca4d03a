"""Everything that can be replaced, by name. A user's own class or function is named 'package.module:Name'.

To add a built-in: write its file, and add its name here. Nothing is imported before it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedlga.core.settings import BadInput, check_settings, choose, settings_of, suggest


@dataclass(frozen=True)
class Seam:
    """One kind of thing that can be replaced."""

    field: str  # the experiment's field, or the option, that names it
    meaning: str
    base: str  # the class that a user's own class extends; empty: it is a function
    names: Mapping[str, str]
    in_experiment: bool = True  # False: an option names it, and results do not depend on it
    load: str = ""  # a function that returns what a name means, if it is neither a class nor a function


SEAMS: dict[str, Seam] = {
    "method": Seam(
        "method",
        "what devices and the aggregator compute",
        "fedlga.core.method:Method",
        {
            "fedavg": "fedlga.methods.fedavg:FedAvg",
            "fedprox": "fedlga.methods.fedprox:FedProx",
            "fednova": "fedlga.methods.fednova:FedNova",
            "scaffold": "fedlga.methods.scaffold:Scaffold",
            "feddyn": "fedlga.methods.feddyn:FedDyn",
            "fedlga": "fedlga.methods.fedlga:FedLGA",
        },
    ),
    "policy": Seam(
        "stragglers",
        "what becomes of unfinished work",
        "fedlga.core.policies.base:Policy",
        {
            "wait": "fedlga.core.policies.wait:Wait",
            "drop": "fedlga.core.policies.drop:Drop",
            "keep": "fedlga.core.policies.keep:Keep",
            "complete": "fedlga.core.policies.complete:Complete",
        },
    ),
    "aggregation": Seam(
        "aggregation",
        "how the updates of a round become one vector",
        "fedlga.core.aggregation.base:AggregationRule",
        {
            "mean": "fedlga.core.aggregation.mean:Mean",
            "median": "fedlga.core.aggregation.median:Median",
            "trimmed-mean": "fedlga.core.aggregation.trimmed_mean:TrimmedMean",
        },
    ),
    "optimizer": Seam(
        "server_optimizer",
        "how the method's direction becomes a step of the weights",
        "fedlga.core.optimizers.base:ServerOptimizer",
        {
            "sgd": "fedlga.core.optimizers.sgd:Sgd",
            "momentum": "fedlga.core.optimizers.momentum:Momentum",
            "adagrad": "fedlga.core.optimizers.adaptive:Adagrad",
            "adam": "fedlga.core.optimizers.adaptive:Adam",
            "yogi": "fedlga.core.optimizers.adaptive:Yogi",
        },
    ),
    "schedule": Seam(
        "schedule",
        "when devices start, and when the aggregator steps",
        "fedlga.core.schedules.base:Schedule",
        {
            "rounds": "fedlga.core.schedules.rounds:Rounds",
            "over-selection": "fedlga.core.schedules.over_selection:OverSelection",
            "buffered": "fedlga.core.schedules.buffered:Buffered",
        },
    ),
    "fleet": Seam(
        "fleet",
        "who is slow",
        "fedlga.core.fleet:Fleet",
        {
            "equal": "fedlga.fleets.equal:EqualFleet",
            "paper": "fedlga.fleets.paper:PaperFleet",
            "speeds": "fedlga.fleets.speeds:SpeedFleet",
            "population": "fedlga.fleets.population:PopulationFleet",
            "trace": "fedlga.fleets.trace:TraceFleet",
            "real": "fedlga.fleets.real:RealFleet",
        },
    ),
    "partition": Seam(
        "partition",
        "who holds which examples",
        "fedlga.learning.partitions.base:Partition",
        {
            "classes": "fedlga.learning.partitions.classes:ByClasses",
            "dirichlet": "fedlga.learning.partitions.dirichlet:ByDirichlet",
            "iid": "fedlga.learning.partitions.iid:Iid",
            "quantity": "fedlga.learning.partitions.quantity:ByQuantity",
            "own": "fedlga.learning.partitions.own:OwnPartition",
        },
    ),
    "dataset": Seam(
        "dataset",
        "what is learned",
        "fedlga.learning.datasets.base:Dataset",
        {
            "fashion-mnist": "fedlga.learning.datasets.fashion_mnist:FashionMnist",
            "cifar-10": "fedlga.learning.datasets.cifar:Cifar10",
            "cifar-100": "fedlga.learning.datasets.cifar:Cifar100",
            "digits": "fedlga.learning.datasets.digits:Digits",
        },
    ),
    "model": Seam(
        "model",
        "a function of (shape, classes) that returns an nn.Module",
        "",
        {
            "mlp": "fedlga.learning.models:mlp",
            "cnn": "fedlga.learning.models:cnn",
            "resnet20": "fedlga.learning.models:resnet20",
        },
    ),
    "task": Seam(
        "task",
        "what is learned, with its own model, data, loss and metrics",
        "",
        {"shakespeare": "fedlga.learning.tasks.shakespeare"},
        load="fedlga.learning.task:load_task",
    ),
    "tracker": Seam(
        "--track",
        "what follows a run round by round",
        "fedlga.core.tracker:Tracker",
        {
            "csv": "fedlga.trackers.csv_file:CsvFile",
            "tensorboard": "fedlga.trackers.tensorboard:TensorBoard",
            "mlflow": "fedlga.trackers.mlflow:MLflow",
            "wandb": "fedlga.trackers.wandb:WeightsAndBiases",
        },
        in_experiment=False,
    ),
}


def list_owners() -> list[tuple[str, str]]:
    """Return all built-ins whose settings are part of an experiment: their kinds and names."""
    seams = {kind: seam for kind, seam in SEAMS.items() if seam.base and seam.in_experiment}
    return [(kind, name) for kind, seam in seams.items() for name in seam.names]


def names_of(kind: str) -> list[str]:
    """Return the built-in names of a kind."""
    return list(SEAMS[kind].names)


def find(kind: str, name: str) -> Any:
    """Return the class or function behind a name; BadInput if there is none, or if it is of another kind."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # from a file, it may be anything
        raise BadInput(f"{SEAMS[kind].field}: got {name!r}; it takes a name")
    if SEAMS[kind].load:
        return import_object(SEAMS[kind].field, SEAMS[kind].load)(name)
    seam = SEAMS[kind]
    path = name if ":" in name else seam.names[choose(seam.field, name, seam.names)]
    plugin = import_object(seam.field, path)
    if not seam.base:
        if not callable(plugin):
            raise BadInput(f"{seam.field}: {path!r} is not a function")
        return plugin
    base = import_object(seam.field, seam.base)
    if not (isinstance(plugin, type) and issubclass(plugin, base)):
        expected = seam.base.replace(":", ".")
        raise BadInput(f"{seam.field}: {path!r} is not a {base.__name__}; it takes a class that extends {expected}")
    return plugin


def create(kind: str, name: str, settings: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
    """Return an instance with checked settings; `arguments` are what the class takes besides."""
    cls = find(kind, name)
    return cls(**arguments, **check_settings(name, cls, settings or {}))


def import_object(what: str, path: str) -> Any:
    """Return the object that 'package.module:name' names."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"{what}: cannot import {path!r} ({error}); it takes package.module:name") from error


def built_in_owners(name: str) -> list[tuple[str, str]]:
    """Return every built-in that has a setting of this name: its kind and its name."""
    return [(kind, owner) for kind, owner in list_owners() if name in {f.name for f in settings_of(find(kind, owner))}]


def find_owner(name: str) -> Any:
    """Return the class behind the name of a table of settings."""
    for kind, owner in list_owners():
        if owner == name:
            return find(kind, name)
    if ":" in name:
        return import_object("options", name)
    known = [owner for _, owner in list_owners()]
    raise BadInput(f"{name}: there is no such field or table; {suggest(name, known)}")
