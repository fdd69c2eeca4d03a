"""Repeat offenders rest: a device whose updates were refused several times is not selected for some rounds.

A refused update is a strike, and one that counts takes a strike away. With `quarantine_after` strikes a device rests
for `quarantine` rounds; after that, one more strike sends it to rest again. Whoever has more than one strike must not
send a long update (`guard.py`), wherever it points. Where nothing is refused, nothing is
remembered, and nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, cast, final

import torch

from fedlga.core.backend import Backend, Incidents, Scores
from fedlga.core.types import Assignment, ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

STRIKES = "quarantine.strikes"  # in the aggregator's memory: rows of device, strikes, rounds done when its rest ends


def find_resting(state: ServerState) -> set[int]:
    """Return the devices that are not selected in the next round."""
    return {device for device, (_, until) in _read(state.memory).items() if until > state.round}


def find_offenders(memory: Memory) -> set[int]:
    """Return the devices with more than one strike: a long update of theirs is not believed."""
    return {device for device, (strikes, _) in _read(memory).items() if strikes > 1}


def judge(
    state: ServerState, refused: Collection[int], used: Iterable[int], *, after: int, rounds: int
) -> dict[str, Vector]:
    """Return what the aggregator remembers of offenders, after a round that `state` has behind it."""
    before = _read(state.memory)
    strikes = dict(before)
    for device in used:
        if device in strikes and strikes[device][0] > 0:
            count, until = strikes[device]
            strikes[device] = count - 1, until
    for device in refused if rounds else ():
        count, until = strikes.get(device, (0, 0))
        resting = count + 1 >= after
        strikes[device] = (after - 1, state.round + rounds) if resting else (count + 1, until)
    strikes = {device: (count, until) for device, (count, until) in strikes.items() if count or until > state.round}
    if not strikes and not before:
        return {}
    rows = [[device, count, until] for device, (count, until) in sorted(strikes.items())]
    return {STRIKES: torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, 3)}


def _read(memory: Memory) -> dict[int, tuple[int, int]]:
    rows = memory.get(STRIKES)
    return {} if rows is None else {device: (n, until) for device, n, until in cast("list[list[int]]", rows.tolist())}


@final
class WithoutResting(Backend):
    """A backend whose resting devices cannot be selected, unless there are no others."""

    def __init__(self, backend: Backend, resting: Collection[int]) -> None:
        """Wrap a backend."""
        self._backend, self._resting = backend, resting

    def awake(self, devices: Sequence[int]) -> Sequence[int]:
        """Return the devices that do not rest; all of them, if all rest: a run must go on."""
        return [device for device in devices if device not in self._resting] or devices

    def present(self) -> Sequence[int]:
        """Return who can be selected."""
        return self.awake(self._backend.present())

    def idle(self) -> Sequence[int]:
        """Return who could start now."""
        return self.awake(self._backend.idle())

    def at_work(self) -> Sequence[int]:
        """Return who works."""
        return self._backend.at_work()

    def run(self, assignments: Sequence[Assignment]) -> Iterable[Update]:
        """Run assignments, as the backend does."""
        return self._backend.run(assignments)

    def run_first(self, assignments: Sequence[Assignment], count: int) -> Iterable[Update]:
        """Run assignments, as the backend does."""
        return self._backend.run_first(assignments, count)

    def run_buffered(
        self,
        assignments: Sequence[Assignment],
        count: int,
        refill: Callable[[Sequence[int], int], Sequence[Assignment]],
        too_old: Collection[int] = (),
    ) -> Iterable[Update]:
        """Run assignments, as the backend does; who rests takes no free place."""

        def refill_awake(idle: Sequence[int], at_work: int) -> Sequence[Assignment]:
            return refill(self.awake(idle), at_work)

        return self._backend.run_buffered(assignments, count, refill_awake, too_old)

    def score(self, w: Vector, buffers: Vector | None) -> Scores:
        """Evaluate, as the backend does."""
        return self._backend.score(w, buffers)

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """Return what devices remember."""
        return self._backend.memories()

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what devices remember."""
        self._backend.restore(memories)

    @property
    def parallel(self) -> int:
        """How many assignments are carried out at the same time."""
        return self._backend.parallel

    def take_incidents(self) -> Incidents:
        """Return what went wrong."""
        return self._backend.take_incidents()

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()
