"""A population of phones: each has a speed, a connection, and hours in which it is there.

A round trip is download, steps, upload; a device that leaves before its report is lost. The defaults are published
figures of phones, each with its source in docs/phones.md. How fast a phone is and how fast its connection is are drawn
independently, as in FLASH (Yang et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from fedlga.core.fleet import Effort, SteadyFleet, whole_steps
from fedlga.core.randomness import Stream, generator
from fedlga.core.settings import BadInput, setting
from fedlga.fleets.files import read_rows
from fedlga.fleets.speeds import draw_speeds

if TYPE_CHECKING:
    from fedlga.core.types import Array

MEGABIT = 1e6 / 8  # bytes
DAY = 86400.0  # seconds
MICROSECOND = 1e-6
LEAST_TAIL = 0.2  # below it, speeds are no longer numbers
COLUMNS = ("speed", "download", "upload")


@final
@dataclass(frozen=True)
class PopulationFleet(SteadyFleet):
    """Phones: each with a speed, a connection, and hours of the day in which it can be asked."""

    speed_median: float = setting(1.7, "median of the speeds, in SGD steps a second", above=0)
    speed_sigma: float = setting(0.6, "standard deviation of the speeds' logarithm", least=0, most=10)
    tail: float = setting(0.0, "a step takes 1 / u^(1 / tail) times as long, u uniform: a heavy tail; 0: none", least=0)
    download: float = setting(35.0, "median of download speeds, megabits a second; 0: no time", least=0)
    download_sigma: float = setting(0.5, "standard deviation of their logarithm", least=0)
    upload: float = setting(26.0, "median of upload speeds, megabits a second; 0: no time", least=0)
    upload_sigma: float = setting(0.7, "standard deviation of their logarithm", least=0)
    correlation: float = setting(0.45, "correlation of the two logarithms", least=-1, most=1)
    available: float = setting(1.0, "mean share of the devices that are there; 1: all, always", above=0, most=1)
    swing: float = setting(4.0, "share that is there in the fullest hour, over that in the emptiest", least=1)
    fullest_hour: float = setting(3.0, "the hour of the day in which most devices are there", least=0, below=24)
    start_hour: float = setting(0.0, "the hour of the day in which the run begins", least=0, below=24)
    figures: str = setting("", "a CSV file: device, and speed, download or upload, which replace draws; empty: none")
    windows: str = setting("", "a CSV file: device, start and end in seconds, when a device is there; empty: none")
    period: float = setting(DAY, "with windows: seconds after which they repeat", above=0)

    def __post_init__(self) -> None:
        assert self.speed_of  # files that cannot be read are refused now, not in the first round
        assert self.hours is None or len(self.hours)

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        if experiment["deadline"] is None:
            raise BadInput("deadline: fleet 'population' needs one; it takes a number of seconds above 0")
        if 0 < settings["tail"] < LEAST_TAIL:
            raise BadInput(
                f"tail: got {settings['tail']:g}; it takes 0 for none, or a number of at least {LEAST_TAIL:g}"
            )
        if (
            settings["available"] < 1
            and not settings["windows"]
            and _amplitude(settings["available"], settings["swing"]) > 1
        ):
            raise BadInput(
                f"swing: got {settings['swing']:g} with available {settings['available']:g}: devices that stay that "
                "long cannot be so unevenly spread; it takes a smaller one"
            )
        return dict(settings)

    @classmethod
    def describe(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:  # noqa: D102
        there = "" if settings["available"] == 1 and not settings["windows"] else ", they come and go"
        return f"phones, deadline {experiment['deadline'] or 0:g} s{there}"

    # How fast

    @cached_property
    def _given(self) -> dict[str, dict[int, float]]:
        """What the file of figures says: by column and device."""
        return read_figures(Path(self.figures), self.workload.devices) if self.figures else {}

    def _replace(self, column: str, drawn: Array) -> list[float]:
        for device, value in self._given.get(column, {}).items():
            drawn[device] = value
        return drawn.tolist()

    @cached_property
    def speed_of(self) -> Sequence[float]:
        """The speed of every device, in steps a second."""
        w = self.workload
        speeds = np.asarray(draw_speeds(w.seed, w.devices, self.speed_median, self.speed_sigma))
        if self.tail:
            uniform = 1.0 - generator(w.seed, Stream.TAIL).random(w.devices)  # never 0
            speeds = speeds * uniform ** (1.0 / self.tail)
        return self._replace("speed", speeds)

    @cached_property
    def transfer_of(self) -> Sequence[tuple[float, float]]:
        """The seconds that every device needs for its download and its upload."""
        w = self.workload
        first, second = generator(w.seed, Stream.NETWORK).standard_normal((2, w.devices))
        both = self.correlation * first + math.sqrt(1 - self.correlation**2) * second
        down = self._replace("download", self.download * np.exp(self.download_sigma * first))
        up = self._replace("upload", self.upload * np.exp(self.upload_sigma * both))
        return [
            (_seconds(w.bytes_down, device_down), _seconds(w.bytes_up, device_up))
            for device_down, device_up in zip(down, up, strict=True)
        ]

    def effort(self, device: int) -> Effort:  # noqa: D102
        asked, speed = self.workload.steps[device], self.speed_of[device]
        down, up = self.transfer_of[device]
        done = max(0, min(asked, whole_steps((self.workload.deadline - down - up) * speed)))
        return Effort(device, done, asked, down + asked / speed + up, download=down, upload=up)

    # When

    @cached_property
    def hours(self) -> Array | None:
        """When devices are there: rows of device, start and end, in seconds of a period; None: always.

        Without a file: each device once a day, for equally long. Its hours are drawn so that the share of the devices
        that are there follows a cosine over the day.
        """
        if self.windows:
            return read_windows(Path(self.windows), self.workload.devices, self.period)
        if self.available == 1:
            return None
        length = self.available * DAY
        middle = self._draw_middles() * DAY + (self.fullest_hour - self.start_hour) * 3600.0
        starts = np.mod(middle - length / 2, DAY)
        return np.stack([np.arange(self.workload.devices), starts, starts + length], axis=1)

    def _draw_middles(self) -> Array:
        """Return the middle of each device's hours, in days from the fullest hour: density 1 + a cos(2 pi x)."""
        amplitude = _amplitude(self.available, self.swing)
        uniform = generator(self.workload.seed, Stream.WINDOWS).random(self.workload.devices)
        grid = np.linspace(0.0, 1.0, 20001)
        return np.interp(uniform, grid + amplitude * np.sin(2 * np.pi * grid) / (2 * np.pi), grid)

    @property
    def _period(self) -> float:
        return self.period if self.windows else DAY

    def present(self, clock: float) -> Sequence[int] | None:  # noqa: D102
        if self.hours is None:
            return None
        return np.unique(self.hours[self._left(self.hours, clock) > 0, 0]).astype(int).tolist()

    @cached_property
    def _by_device(self) -> tuple[Array, Array]:
        """The windows in the order of their devices, and where those of each device begin in it."""
        assert self.hours is not None
        ordered = self.hours[np.argsort(self.hours[:, 0], kind="stable")]
        return ordered, np.searchsorted(ordered[:, 0], np.arange(self.workload.devices + 1))

    def _left(self, windows: Array, clock: float) -> Array:
        """Return how much longer each of the windows is open, in seconds; 0: it is closed now."""
        now, (start, end) = clock % self._period, windows[:, 1:].T
        left = np.where((start <= now) & (now < end), end - now, 0.0)
        after = now + self._period  # a window may go on beyond the end of the period
        return np.maximum(left, np.where((start <= after) & (after < end), end - after, 0.0))

    def next_arrival(self, clock: float) -> float:  # noqa: D102
        assert self.hours is not None
        waits = np.mod(self.hours[:, 1] - clock, self._period)
        moment = clock + float(np.where(waits > MICROSECOND, waits, waits + self._period).min())
        while not self.present(moment):  # the sum may be rounded to just before the window opens
            moment += MICROSECOND
        return moment

    def leaves(self, device: int, clock: float) -> float:  # noqa: D102
        if self.hours is None:
            return math.inf
        ordered, begins = self._by_device
        mine = ordered[begins[device] : begins[device + 1]]
        stays = 0.0
        while stays < self._period:  # a window may go on in the next one, and at the end of the period
            left = self._left(mine, clock + stays + (MICROSECOND if stays else 0.0))
            if not len(left) or left.max() <= 0:
                return stays
            stays += float(left.max())
        return math.inf


def _seconds(size: int, megabits: float) -> float:
    return size / (megabits * MEGABIT) if megabits else 0.0


def _amplitude(available: float, swing: float) -> float:
    """Return how unevenly the middles of the devices' hours are spread.

    Windows of length L smooth a density 1 + a cos(2 pi x) to a share of L (1 + a sin(pi L) / (pi L) cos(2 pi x)), whose
    most over its least is the swing.
    """
    return (swing - 1) / (swing + 1) * math.pi * available / math.sin(math.pi * available) if available < 1 else 0.0


# Files


def _read_number(where: str, row: Mapping[str, str], column: str, *, above: float = 0.0) -> float:
    try:
        value = float(row[column])
    except (TypeError, ValueError) as error:
        raise BadInput(f"{where}: {column} is {row[column]!r}; it takes a number") from error
    if not math.isfinite(value) or value < above or (above == 0 and value == 0 and column in COLUMNS):
        raise BadInput(f"{where}: {column} is {value:g}; it takes a finite number above {above:g}")
    return value


MOST_DIGITS = 12


def _read_device(where: str, row: Mapping[str, str], devices: int) -> int:
    text = (row["device"] or "").strip()
    if not text.isdecimal() or len(text) > MOST_DIGITS or not 0 <= int(text) < devices:
        raise BadInput(f"{where}: there is no device {text[:50]!r}; it takes 0 to {devices - 1}")
    return int(text)


def read_figures(path: Path, devices: int) -> dict[str, dict[int, float]]:
    """Return the figures of devices in a CSV file, by column; an empty cell leaves the draw as it is."""
    figures: dict[str, dict[int, float]] = {column: {} for column in COLUMNS}
    seen: set[int] = set()
    takes = "device, and speed (steps a second), download or upload (megabits a second)"
    for where, row in read_rows("figures", path, {"device"}, takes):
        device = _read_device(where, row, devices)
        if device in seen:
            raise BadInput(f"{where}: device {device} stands there twice")
        seen.add(device)
        if unknown := [name for name in row if name not in ("device", *COLUMNS)]:
            raise BadInput(f"figures: {str(path)!r} has a column {unknown[0]!r}; it takes {takes}")
        for column in COLUMNS:
            if row.get(column):
                figures[column][device] = _read_number(where, row, column)
    return figures


def read_windows(path: Path, devices: int, period: float) -> Array:
    """Return when devices are there, from a CSV file: rows of device, start and end."""
    rows: list[tuple[float, float, float]] = []
    for where, row in read_rows("windows", path, {"device", "start", "end"}, "device, start and end (seconds)"):
        device = _read_device(where, row, devices)
        start, end = (_read_number(where, row, column) for column in ("start", "end"))
        if not start < end or end - start > period or start >= period:
            raise BadInput(
                f"{where}: from {start:g} to {end:g}; a window starts within the period of {period:g} s, and ends later"
            )
        rows.append((float(device), start, end))
    return np.asarray(rows)
