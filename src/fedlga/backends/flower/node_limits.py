"""What a node takes from a message, by its own configuration. Whatever the aggregator asks beyond that is refused.

A message never names a path on the node. It may name what comes with fedlga, and modules that the node's app or its
configuration lists: importing a module runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedlga.core.registry import SEAMS, names_of
from fedlga.core.settings import BadInput, read_toml
from fedlga.core.text import clean_text

if TYPE_CHECKING:
    from flwr.app import Message

    from fedlga.core.types import Assignment

MOST_STEPS = 1_000_000
MOST_SECONDS = 86_400.0
MOST_MEGABYTES = 2048.0
OF_SIMULATIONS = ("memory", "data_dir")  # what only a simulated node takes from a message: folders


@dataclass(frozen=True)
class NodeLimits:
    """The most that a node does for a message."""

    steps: int = MOST_STEPS
    seconds: float | None = None  # None: deadlines of a day, and without a deadline as long as the steps take
    megabytes: float = MOST_MEGABYTES
    modules: tuple[str, ...] = ()  # that an experiment may name, besides what comes with fedlga

    @classmethod
    def read(cls, config: Mapping[str, Any], modules: Iterable[str] = ()) -> NodeLimits:
        """Return the limits in a node's configuration; `modules` are those of its app."""
        seconds = config.get("most-seconds")
        listed = str(config.get("modules", "")).replace(",", " ").split()
        return cls(
            steps=int(_read(config, "most-steps", MOST_STEPS)),
            seconds=None if seconds is None else _read(config, "most-seconds", MOST_SECONDS),
            megabytes=_read(config, "most-megabytes", MOST_MEGABYTES),
            modules=(*modules, *listed),
        )

    def check_message(self, message: Message, setup: Mapping[str, Any]) -> None:
        """Refuse a message that is too large, or that names a folder of this machine."""
        size = sum(len(array.data) for record in message.content.array_records.values() for array in record.values())
        if size > self.megabytes * 1e6:
            raise BadInput(f"the message has {size / 1e6:.1f} megabytes; this node takes {self.megabytes:g}")
        for name in OF_SIMULATIONS:
            if name in setup:
                raise BadInput(f"the message names a folder ({name}); this node takes none")

    def check_experiment(self, text: str, *, own_task: bool) -> None:
        """Refuse an experiment that names what this node may not import; `own_task`: the app has its own."""
        fields = read_toml(text, "the experiment")
        named = {seam.field: str(fields.get(seam.field, "")) for kind, seam in SEAMS.items() if kind != "task"}
        tables = [name for name, value in fields.items() if isinstance(value, Mapping)]
        tables += list(fields.get("options", {}))
        for what, name in [*named.items(), *(("options", str(name)) for name in tables)]:
            if ":" in name:
                self._check_module(what, name, name.partition(":")[0])
        task = fields.get("task")
        if task is not None and not own_task and task not in names_of("task"):
            self._check_module("task", str(task), str(task))

    def _check_module(self, what: str, name: str, module: str) -> None:
        if not any(module == allowed or module.startswith(f"{allowed}.") for allowed in self.modules):
            takes = ", ".join(self.modules) or "what comes with fedlga"
            raise BadInput(f"{what}: the message names {clean_text(name, 100)!r}; this node takes {takes}")

    def limit(self, assignment: Assignment) -> Assignment:
        """Return the assignment as this node carries it out; BadInput if it is too much."""
        if assignment.steps > self.steps:
            raise BadInput(f"the assignment has {assignment.steps} steps; this node takes {self.steps}")
        most = MOST_SECONDS if self.seconds is None else self.seconds
        if assignment.seconds is not None and not 0 <= assignment.seconds <= most:
            raise BadInput(f"the assignment has {assignment.seconds:g} seconds; this node takes {most:g}")
        return assignment if assignment.seconds is not None else replace(assignment, seconds=self.seconds)


def _read(config: Mapping[str, Any], name: str, default: float) -> float:
    value = config.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise BadInput(f"node config: {name} is {value!r}; it takes a number above 0")
    return value
