"""Flower's own simulation, on Ray: nodes that are processes of this machine, or of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator, Iterable
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

from ..settings import BadInput
from . import check_installed

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.serverapp import Grid


class NodesFailed(BadInput):
    """No node did what it was asked for."""


class Carrier(Protocol):
    """What we need of Flower's Grid."""

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send; the messages' names."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Answers to messages, as far as they are there."""
        ...


@contextlib.contextmanager
def simulated_grid(nodes: int, workers: int) -> Generator[Carrier]:
    """A grid of that many simulated nodes, on that many processes, for as long as the `with` lasts.

    Flower runs a ServerApp and ends with it. Ours hands its grid over, and waits until nobody needs it any more.
    """
    check_installed()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of what it will do one day
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 has devices wait behind whatever else runs here
    from flwr.app import Context
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from .device import app as client

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what goes wrong comes back as an answer
    ready: SimpleQueue[Grid | None] = SimpleQueue()
    over, failed = Event(), list[BaseException]()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # pyright: ignore[reportUnusedFunction]
        ready.put(grid)
        over.wait()

    config: Any = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": workers, "log_to_driver": False, "logging_level": "ERROR"},
    }

    def simulate() -> None:
        try:
            run_simulation(server, client, num_supernodes=nodes, backend_config=config)
        except BaseException as error:
            failed.append(error)
        ready.put(None)

    thread = Thread(target=simulate, name="flower-simulation", daemon=True)
    thread.start()
    try:
        grid = ready.get()
        if grid is None:
            raise NodesFailed(f"Flower's simulation did not start: {_reason(failed)}")
        yield _Watched(grid, thread, failed)
    finally:
        over.set()
        thread.join()


class _Watched:
    """A grid that says so when its simulation has ended, where Flower's would wait for ever."""

    def __init__(self, grid: Grid, thread: Thread, failed: list[BaseException]) -> None:
        self._grid, self._thread, self._failed = grid, thread, failed

    def get_node_ids(self) -> Iterable[int]:
        self._check()
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._check()
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._check()
        return self._grid.pull_messages(message_ids)

    def _check(self) -> None:
        if not self._thread.is_alive():
            raise NodesFailed(f"Flower's simulation ended: {_reason(self._failed)}")


def _reason(failed: list[BaseException]) -> str:
    error = failed[0] if failed else None
    cause = error.__cause__ if error is not None and error.__cause__ is not None else error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__
