"""The backend whose devices are Flower nodes: Flower carries the messages, on one machine or many."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict

from fedlga.backends.flower.flower_private import find_codes_of_absent_nodes, quicken_pulls
from fedlga.backends.flower.messages import MOST_EXAMPLES, NUMBERS, Refused, pack_assignment, unpack_update
from fedlga.backends.flower.ray import MessageGrid, NodesFailed
from fedlga.backends.memory_store import NOTHING_YET, ON_NODES, MemoryStore
from fedlga.core.backend import Backend, Incidents, Scores
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment, Update
from fedlga.learning.evaluation import TestSet

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

QUERY_SECONDS = 120.0  # that a new node has to say which device it is
SHORTEST_POLL, LONGEST_POLL = 0.005, 0.25  # seconds between two polls for replies
NEWCOMER_SECONDS = 2.0  # between two looks for devices that can take a free place in a buffer
COUNTED = "flower.counted"  # in a checkpoint: the last round that each device's update counted in
NOT_THERE = find_codes_of_absent_nodes()


@dataclass(frozen=True)
class NodeOptions:
    """What the backend needs to know of an experiment."""

    devices: int
    uploads: tuple[str, ...] = ()  # the method's
    grace: float = 30.0  # seconds after the deadline that a reply may take
    patience: float = 3600.0  # seconds to wait for replies without a deadline
    uses_unfinished: bool = True  # the policy's


def shorten_reason(reason: str | None) -> str:
    """Return what went wrong on a node in one line, without the traces of Flower and Ray."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    last = lines[-1].rpartition("Message: ")[2] if lines else "no reason given"
    return last.rpartition(">:<'")[2].rstrip("'>")  # Flower's form is <class 'OSError'>:<'what it said'>


@final
class FlowerBackend(Backend):
    """Devices as the nodes of a Flower grid. What they remember stays with them."""

    def __init__(
        self,
        grid: MessageGrid,
        test_set: TestSet,
        setup: dict[str, Any],
        options: NodeOptions,
        *,
        store: MemoryStore | None = None,
        strict: bool = False,
    ) -> None:
        """`setup` is what every device needs to know; `store` is where simulated devices keep their memories.

        A round waits for replies until its deadline and `grace` seconds more; without a deadline, for `patience`.
        `strict`: an error on a node ends the run, as it should in a simulation.
        """
        self._grid, self._test_set, self._setup = grid, test_set, setup
        self._options, self._store, self._strict = options, store, strict
        self._name = secrets.token_hex(8)  # by which devices tell this run from others
        self._known: dict[int, tuple[int, int]] = {}  # node -> device and examples
        self._failed: dict[int, tuple[str, float]] = {}  # node -> why it cannot be used, and when to ask it again
        self._counted: dict[int, int] = {}  # device -> the last round that its update counted in
        self._asked: dict[str, tuple[int, float]] = {}  # query -> node, and when the query expires
        self._owed: dict[str, tuple[int, float]] = {}  # messages of earlier rounds -> device, and when they expire
        self._working: dict[str, tuple[Assignment, float]] = {}  # of `run_buffered`: messages, and when they expire
        self._ready: list[Update] = []  # of `run_buffered`: updates that came when enough had come
        self._incidents = Incidents()
        quicken_pulls()

    def wait_for_all(self, seconds: float) -> list[int]:
        """Wait until all devices are there or the time is up; return those that are."""
        until = time.monotonic() + seconds
        while len(available := self._available()) < self._options.devices and time.monotonic() < until:
            self._check_failed()
            time.sleep(LONGEST_POLL)
        return available or self.present()

    def _check_failed(self) -> None:
        """Raise NodesFailed if every node that is there failed, and none was ever good: the good ones may come back."""
        online = set(self._grid.get_node_ids())
        if online and online <= set(self._failed) and not self._known:
            raise NodesFailed(f"every node failed: {self._failed[next(iter(online))][0]}")

    def present(self) -> list[int]:
        """Return the devices that can be asked, in order; wait until there is at least one."""
        until = time.monotonic() + self._options.patience
        while not (available := self._available()):
            self._check_failed()
            if time.monotonic() > until:
                raise NodesFailed(f"no device has been connected for {self._options.patience:g} seconds")
            time.sleep(LONGEST_POLL)
        return available

    def _available(self) -> list[int]:
        """Return the devices whose nodes are connected and owe no reply. New nodes are asked which device they are."""
        online, now = list(self._grid.get_node_ids()), time.monotonic()
        self._failed = {node: (why, expiry) for node, (why, expiry) in self._failed.items() if now < expiry}
        self._ask([node for node in online if node not in self._known and node not in self._failed])
        connected = sorted(self._nodes_by_device(online))
        missing = self._options.devices - len(connected)
        self._incidents.note = f"{missing} of {self._options.devices} devices are not connected" if missing else None
        owing = self._owing() | set(self.at_work())
        return [device for device in connected if device not in owing]

    def _owing(self) -> set[int]:
        """Return the devices that still work on an earlier assignment, or lost it: a new one would wait behind it."""
        for reply in self._pull(self._owed) if self._owed else []:
            self._count_late(reply)
        self._owed = {m: (device, expiry) for m, (device, expiry) in self._owed.items() if time.monotonic() < expiry}
        return {device for device, _ in self._owed.values()}

    def _count_late(self, reply: Message) -> None:
        """Count a reply to a round that is over. It is not used."""
        device, _ = self._owed.pop(reply.metadata.reply_to_message_id, (None, 0.0))
        if device is not None and not reply.has_error():
            self._incidents.late.append(device)

    @property
    def examples(self) -> dict[int, int]:
        """The examples of each device that was ever connected."""
        return dict(self._known.values())

    def _nodes_by_device(self, online: Iterable[int]) -> dict[int, int]:
        """Return the node of each device."""
        return {self._known[node][0]: node for node in online if node in self._known}

    def _ask(self, strangers: Sequence[int]) -> None:
        """Ask new nodes which device they are, and read the replies so far. The others join when they have replied."""
        now = time.monotonic()
        self._asked = {message: (node, expiry) for message, (node, expiry) in self._asked.items() if now < expiry}
        asked = {node for node, _ in self._asked.values()}
        new = [node for node in strangers if node not in asked]
        if new:
            content = RecordDict({"setup": ConfigRecord(self._setup)})
            sent = self._push([Message(content, node, MessageType.QUERY, ttl=QUERY_SECONDS) for node in new])
            pairs = zip(sent, new, strict=True)
            self._asked |= {message: (node, now + QUERY_SECONDS) for message, node in pairs if message is not None}
        for reply in self._pull(self._asked) if self._asked else []:
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            if not reply.has_error():
                self._introduce(node, reply)
            elif reply.error.code not in NOT_THERE:
                self._failed[node] = shorten_reason(reply.error.reason), now + QUERY_SECONDS
                if self._strict:
                    raise NodesFailed(f"a node failed: {self._failed[node][0]}")

    def _introduce(self, node: int, reply: Message) -> None:
        """Accept which device a node says it is, if no other connected node is that device."""
        numbers = reply.content.metric_records.get(NUMBERS) or MetricRecord()
        device, examples = numbers.get("device"), numbers.get("examples")
        again = time.monotonic() + QUERY_SECONDS
        if not isinstance(device, int) or not 0 <= device < self._options.devices:
            self._failed[node] = f"it says it is device {device}, of {self._options.devices}", again
        elif not isinstance(examples, int) or not 1 <= examples <= MOST_EXAMPLES:
            self._failed[node] = f"device {device} says it has {examples} examples", again
        elif self._nodes_by_device(self._grid.get_node_ids()).get(device) is not None:
            self._failed[node] = f"device {device} is there twice", again
        else:  # its old node, if there was one, is gone
            self._known = {other: known for other, known in self._known.items() if known[0] != device}
            self._known[node] = device, examples

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:
        """Yield updates in the order of the assignments. A device that sends none in time is left out."""
        return self.run_first(assignments, len(assignments))

    def run_first(self, assignments: Sequence[Assignment], count: int) -> Iterator[Update]:
        """Yield the first `count` good updates that come, in the order of the assignments.

        The others go on working: Flower cannot call a message back. They are not asked again before they have replied,
        and what they send then is not used.
        """
        if not assignments:
            return
        nodes, longest, grace = self._nodes_by_device(self._known), self._longest(assignments), self._options.grace
        files = {a.device: self._store.file(a.device, a.w.nbytes) for a in assignments} if self._store else {}
        messages = [
            Message(
                pack_assignment(a, self._setup_for(a.device, files)),
                nodes[a.device],
                MessageType.TRAIN,
                ttl=longest + grace + 1,
            )
            for a in assignments
        ]
        pairs = zip(self._push(messages), assignments, strict=True)
        waiting = {message: a for message, a in pairs if message is not None}
        sent_to = {a.device for a in waiting.values()}
        updates: dict[int, Update | None] = {a.device: None for a in assignments if a.device not in sent_to}
        until, over = time.monotonic() + longest, False
        failures: dict[int, str] = {}
        arrived = list[int]()  # devices whose update can be used, in the order in which they came
        for a in assignments:
            pause = SHORTEST_POLL
            while a.device not in updates and not over:
                # Poll once more when the time is up: a reply may have waited behind another's upload.
                over = time.monotonic() >= until or len(arrived) >= count
                if self._gather(waiting, updates, failures):
                    pause = SHORTEST_POLL
                    arrived += [d for d, u in updates.items() if u and self._is_usable(u) and d not in arrived]
                elif a.device not in updates and not over:
                    time.sleep(pause)
                    pause = min(LONGEST_POLL, 1.5 * pause)
            update = updates.get(a.device)
            if a.device in arrived[count:]:  # enough had come before it
                self._incidents.late.append(a.device)
            elif update is not None:
                updates[a.device] = None  # the aggregator may average it as it comes, and need not hold it
                if self._is_usable(update):
                    self._counted[a.device] = a.round
                    if self._store is not None:
                        self._store.count(a.device, files[a.device], a.round)
                yield update
        expiry = until + grace
        self._owed |= {message: (a.device, expiry) for message, a in waiting.items()}
        if failures and (self._strict or len(failures) == len(assignments)):
            device, reason = next(iter(failures.items()))
            raise NodesFailed(f"device {device} failed: {reason}")

    def at_work(self) -> list[int]:
        """Return the devices whose updates are still to come in a later call of `run_buffered`."""
        return [*(u.device for u in self._ready), *(a.device for a, _ in self._working.values())]

    def run_buffered(
        self,
        assignments: Sequence[Assignment],
        count: int,
        refill: Callable[[Sequence[int], int], Sequence[Assignment]],
        too_old: Collection[int] = (),
    ) -> Iterator[Update]:
        """Send assignments, and yield updates as they come, until `count` usable ones have come or nobody is left."""
        self._send(assignments)
        failures: dict[int, str] = {}
        asked = {a.device for a, _ in self._working.values()}
        pause, looked = SHORTEST_POLL, time.monotonic()
        while True:
            while count > 0 and self._ready:
                update = self._ready.pop(0)
                count -= self._is_usable(update) and update.device not in too_old
                looked = -math.inf  # its place is free
                yield update
            if count <= 0:
                break
            if not self._working or time.monotonic() - looked >= NEWCOMER_SECONDS:
                self._send(refill(self.idle(), len(self._working)))
                looked = time.monotonic()
            if not self._working:
                break
            asked |= {a.device for a, _ in self._working.values()}
            if self._gather_buffered(failures):
                pause = SHORTEST_POLL
            else:
                time.sleep(pause)
                pause = min(LONGEST_POLL, 1.5 * pause)
        if failures and set(failures) >= asked:
            device, reason = next(iter(failures.items()))
            raise NodesFailed(f"device {device} failed: {reason}")

    def _gather_buffered(self, failures: dict[int, str]) -> bool:
        """Poll once for replies of nodes at work; return whether there were any."""
        waiting = {name: a for name, (a, _) in self._working.items()}
        updates: dict[int, Update | None] = {}
        came = self._gather(waiting, updates, failures)
        now = time.monotonic()
        left = {name: kept for name, kept in self._working.items() if name in waiting}
        self._working = {name: kept for name, kept in left.items() if now < kept[1]}
        self._owed |= {
            name: (a.device, expiry + self._options.grace) for name, (a, expiry) in left.items() if now >= expiry
        }
        self._ready += [update for update in updates.values() if update is not None]
        return came

    def idle(self) -> list[int]:
        """Return the devices whose nodes are connected and have nothing to do; it does not wait."""
        return self._available()

    def _send(self, assignments: Sequence[Assignment]) -> None:
        """Send assignments of `run_buffered` to their nodes, if these are known."""
        nodes = self._nodes_by_device(self._known)
        assignments = [a for a in assignments if a.device in nodes]
        messages = [
            Message(
                pack_assignment(a, self._setup_for(a.device, {})),
                nodes[a.device],
                MessageType.TRAIN,
                ttl=self._longest([a]) + self._options.grace + 1,
            )
            for a in assignments
        ]
        now = time.monotonic()
        for name, a in zip(self._push(messages) if messages else [], assignments, strict=True):
            if name is not None:
                self._working[name] = a, now + self._longest([a])

    def _is_usable(self, update: Update) -> bool:
        return self._options.uses_unfinished or update.finished

    def _longest(self, assignments: Sequence[Assignment]) -> float:
        """Return the seconds to wait for replies: to the last deadline and the grace, or the patience without one."""
        deadlines = [a.seconds for a in assignments if a.seconds is not None]
        return max(deadlines) + self._options.grace if len(deadlines) == len(assignments) else self._options.patience

    def _gather(
        self, waiting: dict[str, Assignment], updates: dict[int, Update | None], failures: dict[int, str]
    ) -> bool:
        """Poll for replies once; return whether there were any."""
        replies = self._pull([*waiting, *self._owed])
        for reply in replies:
            if reply.metadata.reply_to_message_id in self._owed:
                self._count_late(reply)
                continue
            a = waiting.pop(reply.metadata.reply_to_message_id, None)
            if a is None:  # a second reply, or one to a message of nobody
                continue
            try:
                updates[a.device] = None  # unless the reply is a good one
                if not reply.has_error():
                    update = unpack_update(reply.content, a, self._options.uploads)
                    updates[a.device] = update if update.steps else None
                elif reply.error.code not in NOT_THERE:
                    failures[a.device] = shorten_reason(reply.error.reason)
                    raise Refused(f"it failed: {failures[a.device]}")
            except Refused as refused:
                self._incidents.refused[a.device] = str(refused)
        return bool(replies)

    def _setup_for(self, device: int, files: Mapping[int, Any]) -> ConfigRecord:
        """Return what a device gets besides its assignment: the experiment, the run's name, which memory counts."""
        if device in files:  # a simulated device: its memory is in a folder of ours
            place = {"memory": str(files[device].folder), "counted": files[device].counted}
        else:
            place = {"counted": self._counted.get(device, NOTHING_YET)}
        return ConfigRecord({**self._setup, "name": self._name, **place})

    def _push(self, messages: list[Message]) -> list[str | None]:
        """Send messages; return their ids, None for a message whose node is gone."""
        sent: list[str | None] = list(self._grid.push_messages(messages))
        if len(sent) != len(messages):
            raise NodesFailed("Flower did not take the messages: see its log")
        return sent

    def _pull(self, messages: Iterable[str]) -> list[Message]:
        return list(self._grid.pull_messages(list(messages)))

    def take_incidents(self) -> Incidents:
        """Return what went wrong since the last call."""
        incidents, self._incidents = self._incidents, Incidents()
        return incidents

    def score(self, w: Vector, buffers: Vector | None) -> Scores:
        """Evaluate weights on the aggregator's own test data, in this process."""
        return self._test_set.score(w, buffers)

    def close(self) -> None:
        """Do nothing: the grid is closed by the code that opened it."""

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """Yield what a checkpoint needs: simulated devices' memories. Real devices keep theirs: only which count."""
        if self._store is not None:
            return self._store.memories()
        name = torch.tensor(list(bytes.fromhex(self._name)), dtype=torch.uint8, device="cpu")
        rounds = [self._counted.get(device, NOTHING_YET) for device in range(self._options.devices)]
        return [(0, {ON_NODES: name, COUNTED: torch.tensor(rounds, device="cpu")})]

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""
        if self._store is not None:
            self._store.restore(memories)
            return
        for _, memory in memories:
            if ON_NODES not in memory:
                raise BadInput("backend: the memories of this run's devices are here, not on nodes")
            self._name = memory[ON_NODES].numpy().tobytes().hex()
            self._counted = {d: int(round) for d, round in enumerate(memory[COUNTED]) if round >= 0}
