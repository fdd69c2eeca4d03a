"""A recorded fleet: a CSV file says how far each device got in each round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

from fedlga.core.fleet import Effort, Fleet, whole_steps
from fedlga.core.settings import BadInput, setting
from fedlga.fleets.files import read_rows

Key = tuple[int, int]  # round and device, both from 0


@final
@dataclass(frozen=True)
class TraceFleet(Fleet):
    """As recorded. A device that is not in the recording of a round finishes at the deadline."""

    trace: str | None = setting(None, "a CSV file with columns round, device, and epochs or seconds")

    def __post_init__(self) -> None:
        assert self.recording  # a file that cannot be read is refused now, not in the first round

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        if settings["trace"] is None:
            raise BadInput("trace: got nothing with fleet 'trace'; it takes a CSV file")
        return dict(settings)

    @classmethod
    def describe(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:  # noqa: D102
        return f"as in {settings['trace']}"

    @cached_property
    def recording(self) -> dict[Key, tuple[float, float]]:
        """The share of its work that a device got done in a round, and the seconds it would need for all of it."""
        return read_trace(Path(self.trace or ""), self.workload.devices, self.workload.epochs, self.workload.deadline)

    def efforts(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        return [self._effort(round, d) for d in devices]

    def _effort(self, round: int, device: int) -> Effort:
        asked = self.workload.steps[device]
        share, seconds = self.recording.get((round, device), (1.0, self.workload.deadline))
        return Effort(device, whole_steps(asked * share), asked, seconds, lost=share == 0)


def read_trace(path: Path, devices: int, epochs: int, deadline: float) -> dict[Key, tuple[float, float]]:
    """Read a CSV with columns round (from 1), device (from 0), and epochs (done) or seconds (for all the work)."""
    recording: dict[Key, tuple[float, float]] = {}
    rows = read_rows("trace", path, {"round", "device"}, "round, device, and epochs or seconds")
    measure = "epochs" if "epochs" in rows[0][1] else "seconds"
    if measure not in rows[0][1]:
        raise BadInput(f"trace: {str(path)!r} has no column seconds; it takes round, device, and epochs or seconds")
    for where, row in rows:
        try:
            key, value = (int(row["round"]) - 1, int(row["device"])), float(row[measure])
        except (TypeError, ValueError) as error:
            raise BadInput(f"{where}: round and device take whole numbers, {measure} a number") from error
        if not 0 <= key[1] < devices:
            raise BadInput(f"{where}: there is no device {key[1]}; it takes 0 to {devices - 1}")
        if key[0] < 0 or not math.isfinite(value) or value < 0 or (measure == "seconds" and value == 0):
            raise BadInput(
                f"{where}: got round {key[0] + 1}, {measure} {value:g}; rounds count from 1, {measure} from 0"
            )
        if key in recording:
            raise BadInput(f"{where}: round {key[0] + 1} and device {key[1]} stand there twice")
        if measure == "epochs" and value > epochs:
            raise BadInput(f"{where}: got epochs {value:g}; it takes at most the {epochs} that are asked for")
        share = value / epochs if measure == "epochs" else min(1.0, deadline / value)
        recording[key] = share, value if measure == "seconds" else (deadline / share if share > 0 else math.inf)
    return recording
