"""The six methods by name; a user's own as 'package.module:Class'."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..settings import BadInput, checked, choose

if TYPE_CHECKING:
    from .base import Method

METHODS = {
    "fedavg": "fedlga.methods.fedavg:FedAvg",
    "fedprox": "fedlga.methods.fedprox:FedProx",
    "fednova": "fedlga.methods.fednova:FedNova",
    "scaffold": "fedlga.methods.scaffold:Scaffold",
    "feddyn": "fedlga.methods.feddyn:FedDyn",
    "fedlga": "fedlga.methods.fedlga:FedLGA",
}


def imported(what: str, path: str) -> Any:
    """The object that 'package.module:name' names."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{what}: cannot import {path!r} ({error}); it takes package.module:name") from error


def method_class(name: str) -> type[Method]:
    """The class behind a method's name."""
    path = name if ":" in name else METHODS[choose("method", name, METHODS)]
    found = imported("method", path)
    from .base import Method

    if not (isinstance(found, type) and issubclass(found, Method)):
        raise BadInput(f"method: {path!r} is not a Method; it takes a class that extends fedlga.methods.base.Method")
    return found


def make_method(name: str, options: dict[str, Any]) -> Method:
    """A method with its hyper-parameters."""
    cls = method_class(name)
    return cls(**checked(name, cls, options))
