"""Devices in a pool of persistent processes: one torch thread each, weights and updates through shared memory."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from threading import Thread
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from fedlga.backends.memory_store import MemoryFile, MemoryStore
from fedlga.backends.pool.workers import WorkerEnded, WorkerFailed, Workers
from fedlga.backends.serial import score_here
from fedlga.backends.shared import SharedFolder, share_tree
from fedlga.core.aggregator import BUFFERS
from fedlga.core.backend import Backend, Incidents, Scores
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment, Update
from fedlga.learning.evaluation import TestSet
from fedlga.learning.training import Devices

if TYPE_CHECKING:
    from fedlga.core.types import Array, Memory, Vector
    from fedlga.learning.evaluation import Ranges
    from fedlga.learning.trees import Tree


MOST_ENDS = 3  # workers that one message may end
PIECES = 5  # of an evaluation for each worker: workers are not equally fast
ALIGNMENT = 16  # floats: 64 bytes, as torch's allocator aligns


@final
class PoolBackend(Backend):
    """Assignments go to the next free worker, the longest first; updates come back in the order of the assignments."""

    def __init__(
        self,
        devices: Devices,
        test_set: TestSet,
        workers: Workers,
        model: dict[str, Any],
        slots: int,
        audit: bool = False,
        memory_limit: float = math.inf,
        starts: int = 1,
        ranges: Ranges | None = None,
        test_rows: Array | None = None,
    ) -> None:
        """`model` says how a worker makes the same task and method: names and numbers, no objects.

        `slots` is how many updates a round may bring, and `starts` from how many different weights; more are possible,
        at the cost of setting up again. Of devices'
        memories, `memory_limit` bytes are kept in main memory. `ranges` are the test examples that each device is
        tested on with what it keeps to itself, if it does. `test_rows` are the rows of the training examples that are
        for testing, for workers that read the data themselves because it is not in memory.
        """
        self._workers = workers
        self._all_devices, self._method = devices, devices.method
        self._devices = len(devices.parts)
        self._test_set, self._ranges = test_set, ranges
        self._shared = SharedFolder()
        try:
            self._size = len(devices.model.vector)
            self._rows = 1 + len(devices.method.uploads) + audit
            self._store = MemoryStore(self._shared, memory_limit)
            self._store.create_folders()
            self._slots: int = 0  # updates that there is room for
            self._starts: int = 0  # different weights that they may begin from
            parts = torch.from_numpy(np.concatenate(devices.parts))
            ends = torch.from_numpy(np.cumsum([len(part) for part in devices.parts]))
            data: dict[str, Any] = {"rows": self._share(parts), "ends": self._share(ends)}
            for name, examples in (("train", devices.examples), ("test", test_set.examples)):
                memory = examples.in_memory
                data[name] = None if memory is None else self._share((memory.inputs, memory.targets()))
            data["test_rows"] = None if test_rows is None else self._share(torch.from_numpy(test_rows))
            ranges_held = None if test_set.ranges is None else torch.tensor(test_set.ranges, device="cpu")
            data["ranges"] = None if ranges_held is None else self._share(ranges_held)
            rows = max(1, len(test_set.each_metrics))  # a file has a byte at least
            values, self._values = self._shared.new((rows, len(test_set), 2))
            outputs, self._outputs = None, None
            if test_set.keeps_outputs and test_set.problem.output_shape is not None:
                outputs, self._outputs = self._shared.new((len(test_set), *test_set.problem.output_shape))
            buffers = devices.model.read_buffers()
            self._buffers = 0 if buffers is None else len(buffers)
            self._sent: dict[str, torch.Tensor] = {}
            # All workers use the compiled code, or none: its last bits differ from torch's.
            options = dataclasses.replace(devices.options, fast=devices.kernel is not None)
            self._setup = {
                "model": model,
                "options": dataclasses.asdict(options),
                "data": data,
                "values": values.plain(),
                "outputs": None if outputs is None else outputs.plain(),
            }
            self._incidents: list[str] = []
            self._replies = self._buffer_replies = torch.empty(0, device="cpu")
            self._prepare(slots, starts)
        except BaseException:
            self._shared.close()
            raise

    def present(self) -> Sequence[int]:  # noqa: D102
        return range(self._devices)

    @property
    def parallel(self) -> int:  # noqa: D102
        return len(self._workers)

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Update]:  # noqa: D102
        if not assignments:
            return
        starts = {id(a.w): a for a in assignments}  # assignments of one round share their weights
        self._prepare(len(assignments), len(starts))
        for row, a in enumerate(starts.values()):
            self._send(a.w, a.buffers, row)
            for name, vector in a.broadcast.items():
                self._sent[name][row, : self._size].copy_(vector)
        row_of = {key: row for row, key in enumerate(starts)}
        files = self._store.files([a.device for a in assignments], 4 * self._size)
        longest_first = sorted(range(len(assignments)), key=lambda slot: -assignments[slot].steps)
        messages = [
            _message(assignments[slot], slot, row_of[id(assignments[slot].w)], files[slot]) for slot in longest_first
        ]
        with self._ask(messages) as answers:
            answer_of = dict(zip(longest_first, answers, strict=True))
            for slot, assignment in enumerate(assignments):
                answer = answer_of[slot].result()
                self._store.count(assignment.device, files[slot], assignment.round)
                yield self._update(slot, answer["update"], has_truth=answer["truth"], has_buffers=answer["buffers"])

    def _send(self, w: Vector, buffers: Vector | None, row: int = 0) -> None:
        self._sent["w"][row, : self._size].copy_(w)
        if buffers is not None:
            self._sent[BUFFERS][row, : self._buffers].copy_(buffers)

    def _share(self, tree: Tree) -> Any:
        """Return where the tensors of a tree are, as values for JSON; workers open it with `open_tree`."""
        return share_tree(self._shared, tree)

    def score(self, w: Vector, buffers: Vector | None) -> Scores:
        """Evaluate weights: every worker takes some batches, or some devices that keep something to themselves."""
        outputs_here = self._test_set.keeps_outputs and self._outputs is None  # of a form that cannot be shared
        if outputs_here or self._test_set.keeps_targets:
            return score_here(self._all_devices, self._test_set, self._store, self._ranges, w, buffers)
        self._send(w, buffers)
        messages = self._pieces() if self._ranges is None else self._personal_pieces(self._ranges)
        with self._ask(messages) as answers:
            losses = [(total, count) for answer in answers for total, count in answer.result()["losses"]]
        values = self._values[: len(self._test_set.each_metrics)].clone()
        return Scores(values, losses, None if self._outputs is None else self._outputs.clone())

    def _pieces(self) -> list[dict[str, Any]]:
        count, batch = len(self._test_set), self._test_set.batch
        batches = -(-count // batch)
        pieces = min(batches, PIECES * len(self._workers))
        cuts = [min(batches * piece // pieces * batch, count) for piece in range(pieces + 1)]
        return [{"score": [start, end], "memory": None} for start, end in pairwise(cuts)]

    def _personal_pieces(self, ranges: Ranges) -> list[dict[str, Any]]:
        return [
            {"score": list(piece), "memory": self._store.file(device).plain()}
            for device, piece in enumerate(ranges)
            if piece[0] < piece[1]
        ]

    @contextlib.contextmanager
    def _ask(self, messages: Sequence[dict[str, Any]]) -> Generator[list[Future[dict[str, Any]]]]:
        """Send each message to the next free worker, in this order; the answers are valid inside the `with`."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(messages)):
            waiting.put(index)
        answers = [Future[dict[str, Any]]() for _ in messages]
        with self._each_worker(lambda worker: self._drain(worker, messages, waiting, answers)):
            try:
                yield answers
            finally:  # the answers to the rest are not needed
                _take_all(waiting)

    def _drain(
        self,
        worker: int,
        messages: Sequence[dict[str, Any]],
        waiting: queue.SimpleQueue[int],
        answers: Sequence[Future[dict[str, Any]]],
    ) -> None:
        """Give one worker messages until none is left, or until one fails: then no worker gets another one.

        It gets the next one before it is done with the last, so that it never waits; but not the last few, or it might
        have two left while another has none.
        """
        sent: deque[int] = deque()
        ended = 0  # workers that ended with the first of `sent`
        try:
            while True:
                ahead = 2 if waiting.qsize() >= 2 * len(self._workers) else 1
                while len(sent) < ahead and (index := _take(waiting)) is not None:
                    sent.append(index)
                    self._workers.send(worker, messages[index])
                if not sent:
                    return
                try:
                    answer = self._workers.receive(worker)
                except WorkerEnded as error:
                    ended += 1
                    self._replace(worker, error, [messages[index] for index in sent], ended)
                    continue
                answers[sent.popleft()].set_result(answer)
                ended = 0
        except BaseException as error:
            for index in [*sent, *_take_all(waiting)]:
                answers[index].set_exception(error)
            for _ in range(len(sent) - 1):  # if the worker lives, it answers its other messages too
                with contextlib.suppress(BadInput, WorkerFailed):
                    self._workers.receive(worker)

    def _replace(self, worker: int, error: WorkerEnded, messages: Sequence[dict[str, Any]], ended: int) -> None:
        """Start another worker in place of one that ended, and let it do what that one had not done.

        It gives the same bits: a device's memory is that of its last round until an update counts.
        """
        if ended >= MOST_ENDS:
            raise WorkerFailed(f"{_describe_work(messages[0])} ended {ended} workers, one after the other: {error}")
        self._incidents.append(f"{error}, and was replaced")
        self._workers.replace(worker)
        self._set_up(worker)
        for message in messages:
            self._workers.send(worker, message)

    def take_incidents(self) -> Incidents:  # noqa: D102
        words, self._incidents = self._incidents, []
        return Incidents(note="; ".join(words) or None)

    def _update(self, slot: int, numbers: dict[str, Any], *, has_truth: bool, has_buffers: bool) -> Update:
        vectors = self._replies[slot, :, : self._size]
        uploads = {name: vectors[row] for row, name in enumerate(self._method.uploads, start=1)}
        truth = vectors[-1] if has_truth else None
        buffers = self._buffer_replies[slot] if has_buffers else None
        return Update(**numbers, delta=vectors[0], uploads=uploads, buffers=buffers, truth=truth)

    def _prepare(self, slots: int, starts: int = 1) -> None:
        """Make room for that many updates from that many different weights; tell the workers where everything is."""
        if slots <= self._slots and starts <= self._starts:
            return
        slots, starts = max(slots, self._slots), max(starts, self._starts)
        replies, self._replies = self._shared.new((slots, self._rows, _pad(self._size)))
        sizes: list[tuple[str, int]] = [(name, self._size) for name in ("w", *self._method.sends)]
        sizes += [(BUFFERS, self._buffers)] if self._buffers else []
        sent = {name: self._shared.new((starts, _pad(size))) for name, size in sizes}
        self._sent = {name: tensor for name, (_, tensor) in sent.items()}
        self._slots, self._starts = slots, starts
        buffer_replies, self._buffer_replies = self._shared.new((slots, max(self._buffers, 1)))
        setup: dict[str, Any] = {**self._setup, "replies": replies.plain(), "buffer_replies": buffer_replies.plain()}
        setup |= {"sent": {name: shared.plain() for name, (shared, _) in sent.items()}, "size": self._size}
        setup["buffers"] = self._buffers
        setup["folders"] = self._shared.folders()
        self._setup_message = {"setup": setup, "path": list(sys.path)}
        failures: list[BaseException] = []

        def set_up(worker: int) -> None:
            try:
                self._set_up(worker)
            except BaseException as error:
                failures.append(error)

        with self._each_worker(set_up):
            pass
        if failures:
            raise failures[0]

    def _set_up(self, worker: int) -> None:
        """Tell a worker what it works on; another one if it has ended, or ends from it, but not for ever."""
        for tried in range(1, MOST_ENDS + 1):
            self._workers.send(worker, self._setup_message)
            try:
                self._workers.receive(worker)
                return
            except WorkerEnded as error:
                if tried == MOST_ENDS:
                    raise WorkerFailed(f"the set-up ended {tried} workers, one after the other: {error}") from error
                self._incidents.append(f"{error}, and was replaced")
                self._workers.replace(worker)

    @contextlib.contextmanager
    def _each_worker(self, talk: Callable[[int], None]) -> Generator[None]:
        """Talk to all workers at once: a thread each, which mostly waits for its worker. At the end all are done.

        Except after an interrupt: then the command ends now, and kills the workers.
        """
        threads = [Thread(target=talk, args=(worker,), daemon=True) for worker in range(len(self._workers))]
        for thread in threads:
            thread.start()
        try:
            yield
        except KeyboardInterrupt:
            threads = []
            raise
        finally:
            for thread in threads:
                thread.join()

    def memories(self) -> Iterable[tuple[int, Memory]]:  # noqa: D102
        return self._store.memories()

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:  # noqa: D102
        self._store.restore(memories)

    def close(self) -> None:
        """Remove the shared files. The workers are closed by the code that started them."""
        self._shared.close()


def _pad(size: int) -> int:
    """Return the length of a row: aligned as torch aligns its own tensors, for the last bits of sums of products."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def _message(assignment: Assignment, slot: int, row: int, file: MemoryFile) -> dict[str, Any]:
    """Return an assignment for JSON: its vectors are in shared memory, in a row that other assignments may share."""
    names = list(assignment.broadcast)
    return {"assignment": assignment.numbers(), "slot": slot, "row": row, "broadcast": names, "memory": file.plain()}


def _describe_work(message: dict[str, Any]) -> str:
    if "assignment" in message:
        return f"the work of device {message['assignment']['device']} in round {message['assignment']['round'] + 1}"
    return "an evaluation"


def _take(waiting: queue.SimpleQueue[int]) -> int | None:
    """Return the first of a queue that other threads take from too; None: it is empty."""
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _take_all(waiting: queue.SimpleQueue[int]) -> list[int]:
    """Return all that is left in a queue."""
    left: list[int] = []
    while (index := _take(waiting)) is not None:
        left.append(index)
    return left
