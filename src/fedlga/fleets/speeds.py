"""Each device has its own speed for the whole run, and a deadline cuts off the slow ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from fedlga.core.fleet import Effort, SteadyFleet, whole_steps
from fedlga.core.randomness import Stream, generator
from fedlga.core.settings import BadInput, setting


@final
@dataclass(frozen=True)
class SpeedFleet(SteadyFleet):
    """Each device has a speed, in SGD steps a second, for the whole run; how far it gets follows from the deadline."""

    speeds: tuple[float, ...] = setting((), "SGD steps a second of each device; empty: log-normal", above=0)
    speed_median: float = setting(1.0, "median of log-normal speeds", above=0)
    speed_sigma: float = setting(0.7, "standard deviation of the speeds' logarithm", least=0, most=10)
    slow_classes: tuple[int, ...] = setting(
        (), "a device that holds examples of one of these classes is slow, all others are fast", least=0
    )
    slow_speed: float = setting(0.2, "with slow_classes: a slow device's speed, in medians", above=0, most=1)

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        speeds, slow_classes, classes = settings["speeds"], settings["slow_classes"], experiment["classes"]
        if experiment["deadline"] is None:
            raise BadInput("deadline: fleet 'speeds' needs one; it takes a number of seconds above 0")
        if speeds and len(speeds) != experiment["devices"]:
            raise BadInput(
                f"speeds: got {len(speeds)} of them; it takes one for each of the {experiment['devices']} devices"
            )
        if slow_classes and (speeds or (classes is not None and max(slow_classes) >= classes)):
            most = "" if classes is None else f" to {classes - 1}"
            raise BadInput(f"slow_classes: got {list(slow_classes)}; it takes classes from 0{most}, and no speeds")
        return dict(settings)

    @classmethod
    def describe(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:  # noqa: D102
        return f"deadline {experiment['deadline'] or 0:g} s"

    @cached_property
    def speed_of(self) -> Sequence[float]:
        """The speed of every device."""
        if self.slow_classes:
            if self.workload.held is None:
                raise BadInput("slow_classes: the targets are not classes; it takes speeds, or none")
            held = self.workload.held[:, list(self.slow_classes)].sum(axis=1).tolist()
            return [self.speed_median * self.slow_speed if count > 0 else self.speed_median for count in held]
        return self.speeds or draw_speeds(
            self.workload.seed, self.workload.devices, self.speed_median, self.speed_sigma
        )

    def effort(self, device: int) -> Effort:  # noqa: D102
        asked, speed = self.workload.steps[device], self.speed_of[device]
        return Effort(device, min(asked, whole_steps(self.workload.deadline * speed)), asked, asked / speed)


def draw_speeds(seed: int, devices: int, median: float, sigma: float) -> list[float]:
    """Return speeds whose logarithm is normal: half the fleet is slower than the median, a few much slower."""
    normal = generator(seed, Stream.SPEEDS).standard_normal(devices)
    return (median * np.exp(sigma * normal)).tolist()


def suggest_deadline(seconds: Sequence[float]) -> float:
    """Return what the median device needs: half of the fleet finishes, and shows how updates grow with work.

    Where the slowest need no more than that, all would finish: then the longest time that is too short for them.
    """
    median, slowest = float(np.median(seconds)), max(seconds)
    return median if median < slowest else max((s for s in seconds if s < slowest), default=slowest)
