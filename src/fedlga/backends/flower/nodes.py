"""The backend whose devices are Flower nodes: Flower carries the messages, on one machine or many."""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from ..backends.shared import SharedFolder
from ..evaluation import Exam, Scores
from ..experiment import Experiment
from ..federation import Mishaps
from ..methods import method_class
from ..settings import BadInput
from ..stragglers import POLICIES
from ..types import Task, Update
from .device import Home
from .messages import MOST_EXAMPLES, NUMBERS, Refused, task_content, update_of
from .ray import Carrier, NodesFailed, simulated_grid

if TYPE_CHECKING:
    from ..types import Memory, Vector

ASKING = 120.0  # seconds that a new node has to say which device it is
SOONEST, LATEST = 0.005, 0.25  # seconds between two looks for answers
NAME, COUNTED = "flower.name", "flower.counted"  # what a checkpoint holds of devices that are not here
GONE = (3, 4, 5)  # Flower's error codes for a node, or its answer, that is not there


@contextmanager
def connected(
    e: Experiment, tests: Exam, data_dir: str | Path | None, workers: int, grid: Carrier | None
) -> Generator[Nodes]:
    """The nodes of an experiment: those of `grid`, or as many simulated ones as it has devices."""
    setup: dict[str, Any] = {"experiment": e.to_toml()}
    known, longest = agreed(e), e.grace
    with ExitStack() as closing:
        if grid is None:
            longest = e.patience  # all of them come, though a busy machine takes its time to start Ray
            shared = SharedFolder()
            closing.callback(shared.close)
            memory = shared.folder("memory", in_memory=True)
            setup |= {"memory": str(memory), **({"data_dir": str(Path(data_dir).resolve())} if data_dir else {})}
            grid = closing.enter_context(simulated_grid(e.devices, workers))
            known |= {"memory": memory, "strict": True}
        nodes = Nodes(grid, tests, setup, **known)
        nodes.wait_for_all(longest)
        yield nodes


def agreed(e: Experiment) -> dict[str, Any]:
    """What Nodes needs to know of an experiment."""
    known = {"devices": e.devices, "uploads": method_class(e.method).uploads, "grace": e.grace, "patience": e.patience}
    return {**known, "unfinished": POLICIES[e.policy].uses_unfinished}


def in_a_line(reason: str | None) -> str:
    """What went wrong on a node, without the way it took through Flower and Ray."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    said = lines[-1].rpartition("Message: ")[2] if lines else "no reason given"
    return said.rpartition(">:<'")[2].rstrip("'>")  # Flower's form is <class 'OSError'>:<'what it said'>


@final
class Nodes:
    """Devices as the nodes of a Flower grid. What they remember stays with them."""

    def __init__(
        self,
        grid: Carrier,
        tests: Exam,
        setup: dict[str, Any],
        *,
        devices: int,
        uploads: tuple[str, ...] = (),
        memory: Path | None = None,
        grace: float = 30.0,
        patience: float = 3600.0,
        strict: bool = False,
        unfinished: bool = True,
    ) -> None:
        """`setup` is what every device needs to know; `memory` a folder here that simulated devices keep theirs in.

        A round waits for answers until its deadline and `grace` seconds more; without a deadline, for `patience`.
        `strict`: an error on a node is ours, as in a simulation, and ends the run. `unfinished`: such work counts too.
        """
        self._grid, self._tests, self._setup = grid, tests, setup
        self._devices, self._uploads, self._memory = devices, uploads, memory
        self._grace, self._patience, self._strict, self._unfinished = grace, patience, strict, unfinished
        self._name = secrets.token_hex(8)  # by which devices know this run from others
        self._known: dict[int, tuple[int, int]] = {}  # node -> device and examples
        self._failed: dict[int, tuple[str, float]] = {}  # node -> why it is of no use, and when to ask it again
        self._counted: dict[int, int] = {}  # device -> the last round that its update counted in
        self._asked: dict[str, tuple[int, float]] = {}  # who are you? -> node, and when the question expires
        self._owed: dict[str, tuple[int, float]] = {}  # messages of earlier rounds -> device, and when they expire
        self._mishaps = Mishaps()

    def wait_for_all(self, seconds: float) -> list[int]:
        """The devices that are there, when all are or the time is up."""
        until = time.monotonic() + seconds
        while len(found := self._available()) < self._devices and time.monotonic() < until:
            time.sleep(LATEST)
        return found or self.present()

    def present(self) -> list[int]:
        """The devices that can be asked, in order; a federation has none but those, and waits for the first."""
        until = time.monotonic() + self._patience
        while not (found := self._available()):
            online = set(self._grid.get_node_ids())
            if online and online <= set(self._failed) and not self._known:  # else the good ones may come back
                raise NodesFailed(f"every node failed: {self._failed[next(iter(online))][0]}")
            if time.monotonic() > until:
                raise NodesFailed(f"no device is connected, for {self._patience:g} seconds")
            time.sleep(LATEST)
        return found

    def _available(self) -> list[int]:
        """The devices whose nodes are connected and owe nothing. New nodes are asked which device they are."""
        online, now = list(self._grid.get_node_ids()), time.monotonic()
        self._failed = {node: told for node, told in self._failed.items() if now < told[1]}
        self._ask([node for node in online if node not in self._known and node not in self._failed])
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
        return dict(self._known.values())

    def _device_of(self, online: Iterable[int]) -> dict[int, int]:
        """Which node is which device."""
        return {self._known[node][0]: node for node in online if node in self._known}

    def _ask(self, strangers: Sequence[int]) -> None:
        """Ask nodes who they are, and see who has answered. Nobody waits for the rest: they join when they have."""
        now = time.monotonic()
        self._asked = {message: told for message, told in self._asked.items() if now < told[1]}
        asked = {node for node, _ in self._asked.values()}
        new = [node for node in strangers if node not in asked]
        if new:
            content = RecordDict({"setup": ConfigRecord(self._setup)})
            sent = self._push([Message(content, node, MessageType.QUERY, ttl=ASKING) for node in new])
            pairs = zip(sent, new, strict=True)
            self._asked |= {message: (node, now + ASKING) for message, node in pairs if message is not None}
        for reply in self._pull(self._asked) if self._asked else []:
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id)
            if not reply.has_error():
                self._introduce(node, reply)
            elif reply.error.code not in GONE:
                self._failed[node] = in_a_line(reply.error.reason), now + ASKING
                if self._strict:
                    raise NodesFailed(f"a node failed: {self._failed[node][0]}")

    def _introduce(self, node: int, reply: Message) -> None:
        """Take a node's word for which device it is, if nobody else is."""
        numbers = reply.content.metric_records.get(NUMBERS) or MetricRecord()
        device, examples = numbers.get("device"), numbers.get("examples")
        again = time.monotonic() + ASKING
        if not isinstance(device, int) or not 0 <= device < self._devices:
            self._failed[node] = f"it says it is device {device}, of {self._devices}", again
        elif not isinstance(examples, int) or not 1 <= examples <= MOST_EXAMPLES:
            self._failed[node] = f"device {device} says it has {examples} examples", again
        elif any(other in set(self._grid.get_node_ids()) for other, told in self._known.items() if told[0] == device):
            self._failed[node] = f"device {device} is there twice", again
        else:  # its old node, if there was one, is gone
            self._known = {other: told for other, told in self._known.items() if told[0] != device}
            self._known[node] = device, examples

    def run(self, tasks: Sequence[Task]) -> Iterator[Update]:
        """Updates in the order of the tasks, each as soon as it is there. Whoever sends none in time is left out."""
        if not tasks:
            return
        nodes = self._device_of(self._known)
        longest = self._longest(tasks)
        messages = [
            Message(task_content(t, self._told(t)), nodes[t.device], MessageType.TRAIN, ttl=longest + self._grace + 1)
            for t in tasks
        ]
        pairs = zip(self._push(messages), tasks, strict=True)
        task_by_message = {message: task for message, task in pairs if message is not None}
        updates: dict[int, Update | None] = {
            t.device: None for t in tasks if t.device not in {task.device for task in task_by_message.values()}
        }  # whose node went away just now
        until, over = time.monotonic() + longest, False
        failures: dict[int, str] = {}
        for task in tasks:
            pause = SOONEST
            while task.device not in updates and not over:
                # A last look when the time is up: what came in time may have waited behind another's upload.
                over = time.monotonic() >= until
                if self._gather(task_by_message, updates, failures):
                    pause = SOONEST
                elif task.device not in updates and not over:
                    time.sleep(pause)
                    pause = min(LATEST, 1.5 * pause)
            update = updates.get(task.device)
            if update is not None:
                updates[task.device] = None  # whoever averages it as it comes need not hold it
                if self._unfinished or update.finished:
                    self._counted[task.device] = task.round
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

    def _told(self, task: Task) -> ConfigRecord:
        """What a device gets besides its task: the experiment, the run's name, and which of its memories counts."""
        return ConfigRecord({**self._setup, "name": self._name, "counted": self._counted.get(task.device, -1)})

    def _push(self, messages: list[Message]) -> list[str | None]:
        """None for a message whose node is not there any more."""
        sent: list[str | None] = list(self._grid.push_messages(messages))
        if len(sent) != len(messages):
            raise NodesFailed("Flower did not take the messages: see its log")
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
        """What a checkpoint needs: simulated devices' memories. Real ones keep theirs: only what they are known by."""
        if self._memory is None:
            name = torch.tensor(list(bytes.fromhex(self._name)), dtype=torch.uint8)
            counted = torch.tensor([self._counted.get(device, -1) for device in range(self._devices)])
            return [(0, {NAME: name, COUNTED: counted})]
        homes = {device: Home(self._memory / str(device), round) for device, round in sorted(self._counted.items())}
        return [(device, memory) for device, home in homes.items() if (memory := home.recall())]

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""
        for device, memory in memories:
            if (NAME in memory) != (self._memory is None):
                there, here = ("here", "on nodes") if self._memory is None else ("on the nodes of a SuperLink", "here")
                raise BadInput(f"backend: what this run's devices remember lies {there}, not {here}")
            if self._memory is not None:
                Home(self._memory / str(device), -1).remember(0, memory)
                self._counted[device] = 0
                continue
            self._name = memory[NAME].numpy().tobytes().hex()
            self._counted = {d: int(round) for d, round in enumerate(memory[COUNTED]) if round >= 0}

    def close(self) -> None:
        """Nothing is held."""
