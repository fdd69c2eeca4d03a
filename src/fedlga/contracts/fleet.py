"""What every fleet must hold."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fedlga.contracts.base import expect
from fedlga.core.fleet import Fleet, Workload
from fedlga.core.registry import create, find
from fedlga.core.settings import settings_of
from fedlga.experiments.presets import preset

STEPS = [10, 20, 5, 40, 10, 15]
WORKLOAD = Workload(seed=3, steps=STEPS, epochs=5, deadline=8.0, held=np.eye(6, 10, dtype=int) + 1)


def make_fleet(name: str, workload: Workload = WORKLOAD) -> Fleet:
    """Return a fleet with its defaults; the recorded one gets a small recording."""
    cls = find("fleet", name)
    settings: dict[str, Any] = {}
    if "trace" in {f.name for f in settings_of(cls)}:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.csv"
            file.write_text("round,device,epochs\n1,0,2\n2,3,0\n")
            return create("fleet", name, {"trace": str(file)}, workload=workload)
    return create("fleet", name, settings, workload=workload)


def answers_for_each_device(name: str) -> None:
    """It says of each selected device, in their order, how far it gets: between nothing and all of its steps."""
    fleet = make_fleet(name)
    for round in range(5):
        for devices in ([4, 1, 3], [0], [5, 4, 3, 2, 1, 0], []):
            efforts = fleet.draw(round, devices)
            expect([e.device for e in efforts] == devices, f"it was asked about {devices}")
            for e in efforts:
                expect(e.steps_asked == STEPS[e.device], f"steps_asked is {e.steps_asked}, not {STEPS[e.device]}")
                expect(0 <= e.steps <= e.steps_asked, f"steps is {e.steps}, of {e.steps_asked}")
                expect(e.lost or (math.isfinite(e.seconds) and e.seconds > 0), f"seconds is {e.seconds}")


def repeats(name: str) -> None:
    """The same seed and round give the same answer, in whatever order rounds are asked for."""
    first, second = make_fleet(name), make_fleet(name)
    forward = [first.draw(round, [0, 3, 5]) for round in range(6)]
    backward = [second.draw(round, [0, 3, 5]) for round in reversed(range(6))][::-1]
    expect(forward == backward, "it depends on what was asked before")


def drops_out(name: str) -> None:
    """Drop-outs send nothing, and cost the deadline."""
    fleet = make_fleet(name, Workload(3, STEPS, 5, 8.0, dropout=0.5, held=WORKLOAD.held))
    efforts = [e for round in range(20) for e in fleet.draw(round, [0, 1, 2])]
    expect(any(e.lost for e in efforts), "no device dropped out: is `draw` overridden?")
    expect(all(e.steps == 0 for e in efforts if e.lost), "a lost device did some steps")


def knows_the_always_slow(name: str) -> None:
    """A device that is called always slow never finishes."""
    fleet = make_fleet(name)
    for device in fleet.always_slow():
        expect(all(fleet.draw(round, [device])[0].slow for round in range(5)), f"device {device} finishes")


def describes_itself(name: str) -> None:
    """It describes itself in a short line, and resolves its own settings."""
    cls = find("fleet", name)
    defaults = {f.name: f.default for f in settings_of(cls)}
    defaults |= {"trace": "trace.csv"} if "trace" in defaults else {}
    backend = "flower" if cls.real else "serial"
    context = {**preset("digits").context(), "deadline": 8.0, "fleet": name, "backend": backend}
    settings = cls.resolve(defaults, context)
    expect(set(settings) == set(defaults), f"resolve returns {sorted(settings)}, not {sorted(defaults)}")
    text = cls.describe(settings, context)
    expect(isinstance(text, str) and "\n" not in text and text, "describe returns no line of text")


CHECKS = [answers_for_each_device, repeats, drops_out, knows_the_always_slow, describes_itself]
