"""All devices in this process, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, final

from ..evaluation import Exam, Scores
from ..local import Devices
from ..types import Task, Update
from .memories import check_here, recall, remember
from .shared import SharedFolder

if TYPE_CHECKING:
    from ..types import Memory, Vector


@final
class Serial:
    """The plain backend: what the pool must agree with."""

    def __init__(self, devices: Devices, memory_limit: float = math.inf, tests: Exam | None = None) -> None:
        """Of what devices remember, `memory_limit` bytes are kept in memory. `tests` is for `score`."""
        self._devices = devices
        self._tests = tests
        self._memories: dict[int, Memory] = {}
        self._bytes, self._limit = 0, memory_limit
        self._shared = SharedFolder()  # for what goes beyond
        self._spilled: dict[int, Path] = {}

    def run(self, tasks: Sequence[Task]) -> Iterable[Update]:
        """Updates in the order of the tasks, each when it is asked for."""
        return map(self._work, tasks)

    def _work(self, task: Task) -> Update:
        before = self._recall(task.device)
        update, memory = self._devices.work(task, before)
        if memory or before:  # to forget is to remember nothing
            self._remember(task.device, memory)
        return update

    def score(self, w: Vector) -> Scores:
        """Which test examples weights `w` get right, and the loss of each batch."""
        assert self._tests is not None, "no test data was given"
        return self._tests.scored(w)

    def _recall(self, device: int) -> Memory:
        home = self._spilled.get(device)
        return self._memories.get(device, {}) if home is None else recall(home, device)

    def _remember(self, device: int, memory: Memory) -> None:
        new = device not in self._memories
        if new and self._bytes >= self._limit:
            self._spilled[device] = self._shared.folder("memory")
            remember(self._spilled[device], device, memory)
            return
        self._memories[device] = memory
        self._bytes += sum(vector.nbytes for vector in memory.values()) if new else 0

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """What each device remembers."""
        return ((device, self._recall(device)) for device in sorted([*self._memories, *self._spilled]))

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""
        self._memories, self._spilled, self._bytes = {}, {}, 0
        for device, memory in memories:
            check_here(memory)
            self._remember(device, memory)

    def close(self) -> None:
        """Remove what devices remember."""
        self._shared.close()
