"""All devices in this process, one after the other."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, final

import torch

from ..local import Devices
from ..types import Task, Update

if TYPE_CHECKING:
    from ..types import Memory


@final
class Serial:
    """The plain backend: what the pool must agree with."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._memories: dict[int, Memory] = {}

    def run(self, tasks: Sequence[Task]) -> Iterable[Update]:
        """Updates in the order of the tasks, each when it is asked for."""
        return map(self._work, tasks)

    def _work(self, task: Task) -> Update:
        with one_thread():
            update, memory = self._devices.work(task, self._memories.get(task.device, {}))
        if memory:
            self._memories[task.device] = memory
        return update

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """What each device remembers."""
        return list(self._memories.items())

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""
        self._memories = dict(memories)

    def close(self) -> None:
        """Nothing to let go of."""


@contextmanager
def one_thread() -> Generator[None]:
    """Train on one thread, as a worker of the pool does: the same sums in the same order, and faster at these sizes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
