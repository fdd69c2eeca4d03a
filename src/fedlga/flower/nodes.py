"""The backend whose devices are Flower nodes: Flower carries the messages, on one machine or many."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from ..backends.memories import recall, remember
from ..backends.shared import SharedFolder
from ..evaluation import Exam, Scores
from ..experiment import Experiment
from ..federation import Mishaps
from ..local import Devices
from ..settings import BadInput
from ..types import Task, Update
from .messages import NUMBERS, Refused, task_content, update_of
from .ray import simulated_grid

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from ..types import Memory, Vector

ASKING = 120.0  # seconds that a new node has to say which device it is
SOONEST, LATEST = 0.005, 0.25  # seconds between two looks for answers
GONE = (3, 4, 5)  # Flower's error codes for a node, or its answer, that is not there


class NodesFailed(BadInput):
    """No node did what it was asked for."""


@contextmanager
def connected(
    e: Experiment, devices: Devices, tests: Exam, data_dir: str | Path | None, workers: int, grid: Grid | None
) -> Generator[Nodes]:
    """The nodes of an experiment: those of `grid`, or as many simulated ones as it has devices."""
    setup: dict[str, Any] = {"experiment": e.to_toml()}
    known: dict[str, Any] = {"devices": e.devices, "uploads": devices.method.uploads}
    known |= {"grace": e.grace, "patience": e.patience}
    with ExitStack() as closing:
        if grid is None:
            shared = SharedFolder()
            closing.callback(shared.close)
            memory = shared.folder("memory", in_memory=True)
            setup |= {"memory": str(memory), **({"data_dir": str(Path(data_dir).resolve())} if data_dir else {})}
            grid = closing.enter_context(simulated_grid(e.devices, workers))
            known |= {"memory": memory, "strict": True}
        nodes = Nodes(grid, tests, setup, **known)
        nodes.wait_for_all(e.grace)
        yield nodes


def in_a_line(reason: str | None) -> str:
    """What went wrong on a node, without the way it took through Flower and Ray."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    return lines[-1].rpartition("Message: ")[2].rstrip("'>") if lines else "no reason given"


@final
class Nodes:
    """Devices as the nodes of a Flower grid. What they remember stays with them."""

    def __init__(
        self,
        grid: Grid,
        tests: Exam,
        setup: dict[str, Any],
        *,
        devices: int,
        uploads: tuple[str, ...] = (),
        memory: Path | None = None,
        grace: float = 30.0,
        patience: float = 3600.0,
        strict: bool = False,
    ) -> None:
        """`setup` is what every device needs to know; `memory` a folder here that simulated devices keep theirs in.

        A round waits for answers until its deadline and `grace` seconds more; without a deadline, for `patience`.
        `strict`: an error on a node is ours, as in a simulation, and ends the run.
        """
        self._grid, self._tests, self._setup = grid, tests, setup
        self._devices, self._uploads, self._memory = devices, uploads, memory
        self._grace, self._patience, self._strict = grace, patience, strict
        self._name = secrets.token_hex(8)  # by which devices know this run from others
        self._known: dict[int, tuple[int, int] | None] = {}  # node -> device and examples; None: of no use
        self._owed: dict[str, tuple[int, float]] = {}  # messages of earlier rounds -> device, and when they expire
        self._mishaps = Mishaps()

    def wait_for_all(self, seconds: float) -> list[int]:
        """The devices that are there, when all are or the time is up."""
        until = time.monotonic() + seconds
        while len(found := self.present()) < self._devices and time.monotonic() < until:
            time.sleep(LATEST)
        if not found:
            raise NodesFailed(f"no device is connected after {seconds:g} seconds")
        return found

    def present(self) -> list[int]:
        """The devices whose nodes are connected, in order. New nodes are asked which device they are."""
        online = list(self._grid.get_node_ids())
        self._ask([node for node in online if node not in self._known])
        found = sorted(self._device_of(online))
        missing = self._devices - len(found)
        self._mishaps.note = f"{missing} of {self._devices} devices are not connected" if missing else None
        owing = self._owing()
        return [device for device in found if device not in owing]

    def _owing(self) -> set[int]:
        """Devices that still have an earlier round's task, or lost it: another one would only queue behind it."""
        for reply in self._pull(self._owed) if self._owed else []:
            self._too_late(reply)
        self._owed = {m: (device, expiry) for m, (device, expiry) in self._owed.items() if time.monotonic() < expiry}
        return {device for device, _ in self._owed.values()}

    def _too_late(self, reply: Message) -> None:
        """Count an answer to a round that is over. It is used for nothing."""
        device, _ = self._owed.pop(reply.metadata.reply_to_message_id)
        if not reply.has_error():
            self._mishaps.late.append(device)

    @property
    def examples(self) -> dict[int, int]:
        """How many each device has that was ever there."""
        return dict(told for told in self._known.values() if told is not None)

    def _device_of(self, online: Iterable[int]) -> dict[int, int]:
        """Which node is which device."""
        return {told[0]: node for node in online if (told := self._known.get(node)) is not None}

    def _ask(self, nodes: Sequence[int]) -> None:
        if not nodes:
            return
        content = RecordDict({"setup": ConfigRecord(self._setup)})
        asked = dict(zip(self._push([Message(content, node, MessageType.QUERY) for node in nodes]), nodes, strict=True))
        until = time.monotonic() + ASKING
        while asked and time.monotonic() < until:
            for reply in self._pull(asked):
                node = asked.pop(reply.metadata.reply_to_message_id)
                self._known[node] = None if reply.has_error() else self._told(reply)
                if reply.has_error() and reply.error.code not in GONE and self._strict:
                    raise NodesFailed(f"a node failed: {in_a_line(reply.error.reason)}")
            time.sleep(SOONEST if self._strict else LATEST)
        self._known |= dict.fromkeys(asked.values())

    def _told(self, reply: Message) -> tuple[int, int] | None:
        numbers = reply.content.metric_records.get(NUMBERS)
        if numbers is None:
            return None
        device, examples = numbers.get("device"), numbers.get("examples")
        if not isinstance(device, int) or not isinstance(examples, int) or not 0 <= device < self._devices:
            return None
        taken = {told[0] for told in self._known.values() if told is not None}
        return None if device in taken and not self._came_back(device) else (device, examples)

    def _came_back(self, device: int) -> bool:
        """Whether a device that is known already is now another node: its old one is gone then."""
        online = set(self._grid.get_node_ids())
        old = [node for node, told in self._known.items() if told is not None and told[0] == device]
        if any(node in online for node in old):
            return False
        for node in old:
            self._known[node] = None
        return True

    def run(self, tasks: Sequence[Task]) -> Iterator[Update]:
        """Updates in the order of the tasks, each as soon as it is there. Whoever sends none in time is left out."""
        if not tasks:
            return
        setup = ConfigRecord({**self._setup, "name": self._name})
        nodes = self._device_of(self._known)
        longest = self._longest(tasks)
        messages = [
            Message(task_content(t, setup), nodes[t.device], MessageType.TRAIN, ttl=longest + self._grace + 1)
            for t in tasks
        ]
        task_by_message = dict(zip(self._push(messages), tasks, strict=True))
        until = time.monotonic() + longest
        updates: dict[int, Update | None] = {}
        failures: dict[int, str] = {}
        for task in tasks:
            pause = SOONEST
            while task.device not in updates and time.monotonic() < until:
                if self._gather(task_by_message, updates, failures):
                    pause = SOONEST
                elif task.device not in updates:
                    time.sleep(pause)
                    pause = min(LATEST, 1.5 * pause)
            update = updates.get(task.device)
            if update is not None:
                yield update
        expiry = until + self._grace
        self._owed |= {message: (task.device, expiry) for message, task in task_by_message.items()}
        if failures and (self._strict or len(failures) == len(tasks)):
            device, reason = next(iter(failures.items()))
            raise NodesFailed(f"device {device} failed: {reason}")

    def _longest(self, tasks: Sequence[Task]) -> float:
        given = [task.seconds for task in tasks if task.seconds is not None]
        return max(given) + self._grace if len(given) == len(tasks) else self._patience

    def _gather(self, waiting: dict[str, Task], updates: dict[int, Update | None], failures: dict[int, str]) -> bool:
        """Look for answers once; whether there were any."""
        replies = self._pull([*waiting, *self._owed])
        for reply in replies:
            if reply.metadata.reply_to_message_id in self._owed:
                self._too_late(reply)
                continue
            task = waiting.pop(reply.metadata.reply_to_message_id)
            try:
                updates[task.device] = None  # unless it is a good one
                if not reply.has_error():
                    update = update_of(reply.content, task, self._uploads)
                    updates[task.device] = update if update.steps else None
                elif reply.error.code not in GONE:
                    failures[task.device] = in_a_line(reply.error.reason)
                    raise Refused(f"it failed: {failures[task.device]}")
            except Refused as refused:
                self._mishaps.refused[task.device] = str(refused)
        return bool(replies)

    def _push(self, messages: list[Message]) -> list[str]:
        sent = list(self._grid.push_messages(messages))
        if len(sent) != len(messages) or not all(sent):
            raise NodesFailed("Flower did not take all messages: see its log")
        return sent

    def _pull(self, messages: Iterable[str]) -> list[Message]:
        return list(self._grid.pull_messages(list(messages)))

    def mishaps(self) -> Mishaps:
        """What went wrong since the last time, so that it stands in the record."""
        found, self._mishaps = self._mishaps, Mishaps()
        return found

    def score(self, w: Vector) -> Scores:
        """Which test examples weights `w` get right: the aggregator's own, in this process."""
        return self._tests.scored(w)

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """What a checkpoint needs: simulated devices' memories. Real ones keep theirs; only our name for this run."""
        if self._memory is None:
            return [(0, {"name": torch.tensor(list(bytes.fromhex(self._name)), dtype=torch.uint8)})]
        files = sorted(self._memory.glob("*.safetensors"), key=lambda file: int(file.stem))
        return [(int(file.stem), recall(self._memory, int(file.stem))) for file in files]

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""
        for device, memory in memories:
            if (name := memory.get("name")) is not None:
                self._name = name.numpy().tobytes().hex()
            elif self._memory is None:
                raise BadInput("backend: this run's devices were simulated, and their memories lie here, not on nodes")
            else:
                remember(self._memory, device, memory)

    def close(self) -> None:
        """Nothing is held."""
