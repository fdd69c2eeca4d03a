"""Flower's own simulation, on Ray: nodes that are processes of this machine, or of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator, Iterable
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Protocol

from fedlga.backends.flower.installed import check_installed
from fedlga.core.settings import BadInput

if TYPE_CHECKING:
    from flwr.app import Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid


class NodesFailed(BadInput):
    """The nodes cannot do their work; the message says why."""


class MessageGrid(Protocol):
    """The part of Flower's Grid that is used here."""

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes that are connected."""
        ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to messages that have arrived."""
        ...


@contextlib.contextmanager
def simulate_grid(nodes: int, workers: int, client: ClientApp) -> Generator[MessageGrid]:
    """Start a grid of simulated nodes, on that many processes, for as long as the `with` lasts.

    Flower runs a ServerApp and stops when it returns. Ours passes its grid on, and waits until the `with` ends.
    """
    check_installed()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns about a future change
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray starts workers at 15: on a busy machine they starve
    from flwr.app import Context
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # errors come back as replies
    ready: SimpleQueue[Grid | None] = SimpleQueue()
    over, errors = Event(), list[BaseException]()
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
            errors.append(error)
        ready.put(None)

    thread = Thread(target=simulate, name="flower-simulation", daemon=True)
    thread.start()
    try:
        grid = ready.get()
        if grid is None:
            raise NodesFailed(f"Flower's simulation did not start: {_reason(errors)}")
        yield _WatchedGrid(grid, thread, errors)
    finally:
        over.set()
        thread.join()


class _WatchedGrid:
    """A grid that raises when its simulation has ended; Flower's own would wait forever."""

    def __init__(self, grid: Grid, thread: Thread, errors: list[BaseException]) -> None:
        self._grid, self._thread, self._errors = grid, thread, errors

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
            raise NodesFailed(f"Flower's simulation ended: {_reason(self._errors)}")


def _reason(errors: list[BaseException]) -> str:
    """Return why the simulation ended, in one line."""
    error = errors[0] if errors else None
    cause = error.__cause__ if error is not None and error.__cause__ is not None else error
    return str(cause).strip().partition("\n")[0] or type(cause).__name__
