"""All devices in this process, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, final

from fedlga.backends.memory_store import MemoryStore
from fedlga.backends.shared import SharedFolder
from fedlga.core.backend import Backend, Scores
from fedlga.core.types import Assignment, Update
from fedlga.learning.evaluation import TestSet, join_scores
from fedlga.learning.training import Devices

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector
    from fedlga.learning.evaluation import Ranges


@final
class SerialBackend(Backend):
    """The plain backend: the others must agree with it."""

    def __init__(
        self,
        devices: Devices,
        test_set: TestSet | None = None,
        memory_limit: float = math.inf,
        ranges: Ranges | None = None,
    ) -> None:
        """Keep `memory_limit` bytes of devices' memories in main memory. `test_set` is for `score`.

        `ranges` are the test examples that each device is tested on with what it keeps to itself, if it does.
        """
        self._devices, self._test_set, self._ranges = devices, test_set, ranges
        self._shared = SharedFolder()
        self._store = MemoryStore(self._shared, memory_limit)

    def present(self) -> Sequence[int]:  # noqa: D102
        return range(len(self._devices.parts))

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:  # noqa: D102
        for assignment in assignments:
            before = self._store.read(assignment.device)
            update, memory = self._devices.perform(assignment, before)
            if memory or before:  # an empty memory is stored too: it means the device forgot
                file = self._store.file(assignment.device, assignment.w.nbytes)
                file.write(assignment.round, memory)
                self._store.count(assignment.device, file, assignment.round)
            yield update

    def score(self, w: Vector, buffers: Vector | None) -> Scores:  # noqa: D102
        assert self._test_set is not None, "no test data was given"
        return score_here(self._devices, self._test_set, self._store, self._ranges, w, buffers)

    def memories(self) -> Iterable[tuple[int, Memory]]:  # noqa: D102
        return self._store.memories()

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:  # noqa: D102
        self._store.restore(memories)

    def close(self) -> None:  # noqa: D102
        self._shared.close()


def score_here(
    devices: Devices, test_set: TestSet, store: MemoryStore, ranges: Ranges | None, w: Vector, buffers: Vector | None
) -> Scores:
    """Evaluate weights in this process; with `ranges`, each device with what it keeps to itself."""
    if ranges is None:
        return test_set.score(w, buffers)
    pieces: list[Scores] = []
    for device, (start, end) in enumerate(ranges):
        own = devices.personalise(w, buffers, store.read(device))
        pieces.append(test_set.score(*own, start, end))
    return join_scores(pieces)
