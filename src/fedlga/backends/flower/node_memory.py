"""Where a real node keeps its device's memory: on its own disk, so that it survives a restart of the node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlga.backends.memory_store import MemoryFile
from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from flwr.app import Context


LONGEST_NAME = 100


def device_number(config: Mapping[str, Any]) -> int:
    """Return which device a node is."""
    number = config.get("device", config.get("partition-id"))
    if not isinstance(number, int):
        raise BadInput("node config: it needs device=N, the number of this device")
    return number


def own_memory_file(context: Context, run: str, counted: int) -> MemoryFile:
    """Return where this node keeps its memory of a run; `counted` is the last round that counted."""
    if not (run.isascii() and run.isalnum() and len(run) <= LONGEST_NAME):
        raise BadInput(f"the run's name is {run[:LONGEST_NAME]!r}; it takes up to {LONGEST_NAME} letters and digits")
    config = context.node_config
    state = config.get("state-dir")
    default = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "fedlga"
    # By the device's number, if it has one: a node without a key gets a new id at every start.
    device = config.get("device", config.get("partition-id", context.node_id))
    folder = (Path(str(state)) if state else default / f"device-{device}") / run
    return MemoryFile(folder, counted, durable=True)
