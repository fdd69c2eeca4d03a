"""Flower's own simulation, on Ray: nodes that are processes of this machine, or of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator
from queue import SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from . import check_installed

if TYPE_CHECKING:
    from flwr.serverapp import Grid


@contextlib.contextmanager
def simulated_grid(nodes: int, workers: int) -> Generator[Grid]:
    """A grid of that many simulated nodes, on that many processes, for as long as the `with` lasts.

    Flower runs a ServerApp and ends with it. Ours hands its grid over, and waits until nobody needs it any more.
    """
    check_installed()
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of what it will do one day
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from flwr.app import Context
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    from .device import app as client

    logging.getLogger("flwr").setLevel(logging.CRITICAL)  # what goes wrong comes back as an answer
    ready: SimpleQueue[Grid | BaseException] = SimpleQueue()
    over = Event()
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
            ready.put(error)

    thread = Thread(target=simulate, name="flower-simulation", daemon=True)
    thread.start()
    found = ready.get()
    if isinstance(found, BaseException):
        raise found
    try:
        yield found
    finally:
        over.set()
        thread.join()
