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

from fedlga.backends.flower.device_tests import Sums, as_scores, find_unbelievable, pack_test, unpack_sums
from fedlga.backends.flower.flower_private import find_codes_of_absent_nodes, quicken_pulls
from fedlga.backends.flower.messages import (
    NUMBERS,
    Refused,
    most_bytes_of_update,
    pack_assignment,
    reading_a_reply,
    unpack_update,
)
from fedlga.backends.flower.ray import MessageGrid, NodesFailed
from fedlga.backends.flower.replies import Reply, ReplyReader, shorten_reason
from fedlga.backends.flower.roster import KEY_BYTES, Roster
from fedlga.backends.memory_store import NOTHING_YET, ON_NODES, MemoryStore
from fedlga.core.backend import Backend, Incidents, Scores
from fedlga.core.settings import BadInput
from fedlga.core.text import clean_text
from fedlga.core.types import Assignment, Update
from fedlga.learning.evaluation import TestSet

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

QUERY_SECONDS = 120.0  # that a new node has to say which device it is
SHORTEST_POLL, LONGEST_POLL = 0.005, 0.25  # seconds between two polls for replies
ENOUGH_FAILED = 10  # devices that failed one after another: a fleet of thousands need not all be tried
NEWCOMER_SECONDS = 2.0  # between two looks for devices that can take a free place in a buffer
COUNTED = "flower.counted"  # in a checkpoint: the last round that each device's update counted in
KEYS = "flower.keys"  # and the fingerprint of the key that each device's number belongs to
NOT_THERE = find_codes_of_absent_nodes()


@dataclass(frozen=True)
class NodeOptions:
    """What the backend needs to know of an experiment."""

    devices: int
    uploads: tuple[str, ...] = ()  # the method's
    grace: float = 30.0  # seconds after the deadline that a reply may take
    patience: float = 3600.0  # seconds to wait for replies without a deadline
    uses_unfinished: bool = True  # the policy's
    bind: bool = True  # a device's number stays with the key of its node
    test_seconds: float | None = None  # that devices have to test the joint model; None: the aggregator tests it


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
        self._roster = Roster(grid, options.devices, bind=options.bind and store is None)
        self._replies = ReplyReader(grid)
        self._counted: dict[int, int] = {}  # device -> the last round that its update counted in
        self._asked: dict[str, tuple[int, float]] = {}  # query -> node, and when the query expires
        self._owed: dict[str, tuple[int, float]] = {}  # messages of earlier rounds -> device, and when they expire
        self._working: dict[str, tuple[Assignment, float]] = {}  # of `run_buffered`: messages, and when they expire
        self._ready: list[Update] = []  # of `run_buffered`: updates that came when enough had come
        self._failing: dict[int, str] = {}  # devices that failed since the last good update of anybody, and why
        self._most_bytes = 0  # of the arrays in a reply
        self._incidents = Incidents()
        self._slow: list[int] = []  # devices whose last update was unfinished
        quicken_pulls()

    def wait_for_all(self, seconds: float) -> list[int]:
        """Wait until all devices are there or the time is up; return those that are."""
        until = time.monotonic() + seconds
        while len(available := self._available()) < self._options.devices and time.monotonic() < until:
            if (
                2 * len(list(self._grid.get_node_ids())) > self._options.devices
            ):  # or a few could end it before most come
                self._check_failed()
            time.sleep(LONGEST_POLL)
        return available or self.present()

    def _check_failed(self) -> None:
        """Raise NodesFailed if every node that is there failed, and none was ever good: the good ones may come back."""
        if why := self._roster.why_all_failed(self._grid.get_node_ids()):
            raise NodesFailed(f"every node failed: {why}")

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
        online = list(self._grid.get_node_ids())
        self._ask(self._roster.strangers(online))
        connected = sorted(self._roster.nodes(online))
        missing = self._options.devices - len(connected)
        self._incidents.note = f"{missing} of {self._options.devices} devices are not connected" if missing else None
        owing = self._owing() | set(self.at_work())
        return [device for device in connected if device not in owing]

    def _owing(self) -> set[int]:
        """Return the devices that still work on an earlier assignment, or lost it: a new one would wait behind it."""
        for reply in self._replies.pull(self._owed, self._most_bytes):
            self._count_late(reply)
        self._owed = {m: (device, expiry) for m, (device, expiry) in self._owed.items() if time.monotonic() < expiry}
        return {device for device, _ in self._owed.values()}

    def _count_late(self, reply: Reply) -> None:
        """Count a reply to a round that is over. It is not used."""
        device, _ = self._owed.pop(reply.asked, (None, 0.0))
        if device is not None and reply.message is not None and not reply.message.has_error():
            self._incidents.late.append(device)

    @property
    def slow(self) -> Sequence[int]:
        """The devices whose last update was unfinished; the same list from round to round."""
        return self._slow

    @property
    def examples(self) -> dict[int, int]:
        """The examples of each device that was ever connected."""
        return self._roster.examples

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
        for reply in self._replies.pull(self._asked, 0):
            node, _ = self._asked.pop(reply.asked)
            if reply.message is None:
                self._roster.fail(node, f"its reply was refused: {reply.refused}")
            elif not reply.message.has_error():
                self._roster.introduce(node, reply.message.content.metric_records.get(NUMBERS) or MetricRecord())
            elif reply.message.error.code not in NOT_THERE:
                why = shorten_reason(reply.message.error.reason)
                self._roster.fail(node, why)
                if self._strict:
                    raise NodesFailed(f"a node failed: {why}")
        self._incidents.duplicates |= self._roster.duplicates
        self._roster.duplicates.clear()

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
        nodes, longest, grace = self._roster.nodes(), self._longest(assignments), self._options.grace
        files = {a.device: self._store.file(a.device, a.w.nbytes) for a in assignments} if self._store else {}
        messages = [self._make_message(a, nodes[a.device], longest, files) for a in assignments]
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
            self._check_failing()

    def _check_failing(self) -> None:
        """Raise NodesFailed if the app fails on most devices: a few that were selected together must not end a run.

        Those count that failed since the last good update of anybody: most of the connected ones, or ten.
        """
        connected = len(self._roster.nodes(self._grid.get_node_ids()))
        if self._strict or len(self._failing) >= min(ENOUGH_FAILED, connected // 2 + 1):
            device, reason = next(iter(self._failing.items()))
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
            self._check_failing()

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
        nodes = self._roster.nodes()
        assignments = [a for a in assignments if a.device in nodes]
        messages = [self._make_message(a, nodes[a.device], self._longest([a]), {}) for a in assignments]
        now = time.monotonic()
        for name, a in zip(self._push(messages) if messages else [], assignments, strict=True):
            if name is not None:
                self._working[name] = a, now + self._longest([a])

    def _make_message(self, a: Assignment, node: int, longest: float, files: Mapping[int, Any]) -> Message:
        """Return an assignment as a message that expires when its reply would be too late."""
        content = pack_assignment(a, self._setup_for(a.device, files))
        return Message(content, node, MessageType.TRAIN, ttl=longest + self._options.grace + 1)

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
        for a in waiting.values():
            self._most_bytes = max(self._most_bytes, most_bytes_of_update(a, self._options.uploads))
        replies = self._replies.pull([*waiting, *self._owed], self._most_bytes)
        for reply in replies:
            if reply.asked in self._owed:
                self._count_late(reply)
                continue
            a, message = waiting.pop(reply.asked), reply.message
            try:
                updates[a.device] = None  # unless the reply is a good one
                if message is None:
                    raise Refused(reply.refused)
                if not message.has_error():
                    with reading_a_reply():
                        update = unpack_update(message.content, a, self._options.uploads)
                    updates[a.device] = update if update.steps else None
                    self._failing.clear()
                    self._slow[:] = [d for d in self._slow if d != a.device] + [a.device] * (not update.finished)
                elif message.error.code not in NOT_THERE:
                    failures[a.device] = self._failing[a.device] = shorten_reason(message.error.reason)
                    raise Refused(f"it failed: {failures[a.device]}")
            except Refused as refused:
                self._refuse(a.device, str(refused))
        return bool(replies)

    def _refuse(self, device: int, why: str) -> None:
        """Note why a reply of a device is left out; there may be two in a round, of training and of testing."""
        before = self._incidents.refused.get(device)
        self._incidents.refused[device] = why if before is None else clean_text(f"{before}; {why}")

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

    def take_incidents(self) -> Incidents:
        """Return what went wrong since the last call."""
        incidents, self._incidents = self._incidents, Incidents()
        incidents.ignored, self._replies.ignored = self._replies.ignored, 0
        return incidents

    def score(self, w: Vector, buffers: Vector | None) -> Scores:
        """Evaluate weights: on the aggregator's own test data, in this process, or on the devices' own."""
        if self._options.test_seconds is None:
            return self._test_set.score(w, buffers)
        return self._score_on_devices(w, buffers, self._options.test_seconds)

    def _score_on_devices(self, w: Vector, buffers: Vector | None, seconds: float) -> Scores:
        """Let the devices that are idle test weights; one that does not reply in time is left out."""
        devices, nodes, metrics = self._available(), self._roster.nodes(), self._test_set.problem.metrics
        ttl = seconds + self._options.grace + 1
        content = pack_test(w, buffers, self._setup)
        messages = [Message(content, nodes[device], MessageType.EVALUATE, ttl=ttl) for device in devices]
        pairs = zip(self._push(messages) if messages else [], devices, strict=True)
        waiting = {name: device for name, device in pairs if name is not None}
        measured: dict[int, Sums] = {}
        until, pause, over = time.monotonic() + seconds, SHORTEST_POLL, False
        while waiting and not over:
            over = time.monotonic() >= until  # poll once more then
            replies = self._replies.pull(waiting, 0)
            for reply in replies:
                device = waiting.pop(reply.asked)
                try:
                    if reply.message is None:
                        raise Refused(reply.refused)
                    if not reply.message.has_error():
                        with reading_a_reply():
                            measured[device] = unpack_sums(reply.message.content, device, metrics)
                    elif reply.message.error.code not in NOT_THERE:
                        raise Refused(f"its evaluation failed: {shorten_reason(reply.message.error.reason)}")
                except Refused as refused:
                    self._refuse(device, str(refused))
            pause = SHORTEST_POLL if replies else min(LONGEST_POLL, 1.5 * pause)
            if waiting and not replies and not over:
                time.sleep(pause)
        self._owed |= {name: (device, until + self._options.grace) for name, device in waiting.items()}
        unbelievable = find_unbelievable(measured)
        for device, why in unbelievable.items():
            self._refuse(device, why)
        measured = {device: sums for device, sums in measured.items() if device not in unbelievable}
        if len(measured) < self._options.devices:
            words = f"{len(measured)} of {self._options.devices} devices tested the model"
            self._incidents.note = "; ".join(filter(None, (self._incidents.note, words)))
        return as_scores(measured, self._options.devices, metrics)

    def close(self) -> None:
        """Do nothing: the grid is closed by the code that opened it."""

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """Yield what a checkpoint needs: simulated devices' memories. Real devices keep theirs: only which count."""
        if self._store is not None:
            return self._store.memories()
        name = torch.tensor(list(bytes.fromhex(self._name)), dtype=torch.uint8, device="cpu")
        devices = range(self._options.devices)
        rounds = [self._counted.get(device, NOTHING_YET) for device in devices]
        keys = [list(self._roster.keys.get(device, bytes(KEY_BYTES))) for device in devices]
        numbers = {COUNTED: torch.tensor(rounds, device="cpu"), KEYS: torch.tensor(keys, dtype=torch.uint8)}
        return [(0, {ON_NODES: name, **numbers})]

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
            if KEYS in memory:  # earlier versions did not keep them
                keys = memory[KEYS].numpy()
                self._roster.restore_keys({d: key.tobytes() for d, key in enumerate(keys) if key.any()})
