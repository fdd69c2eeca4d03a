"""Devices in a pool of persistent processes: one torch thread each, weights and updates through shared memory."""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch

from ..evaluation import Exam, Scores
from ..local import Devices
from ..settings import BadInput
from ..types import Task, Update
from .memories import Homes
from .shared import SharedFolder

if TYPE_CHECKING:
    from ..types import Memory, Vector


PIECES = 5  # that a worker gets of an evaluation: workers are not equally fast
ALIGNED = 16  # floats: 64 bytes, as torch's allocator aligns


class WorkerFailed(RuntimeError):
    """A worker process ended or raised; the message holds what it said."""


class Workers:
    """The processes. They outlive a run: a comparison starts them once."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-m", "fedlga.backends.worker"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._processes = [
            subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a Ctrl-C in the terminal is for us alone: we end the workers when it is time
            )
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self._processes)

    def send(self, worker: int, message: dict[str, Any]) -> None:
        """Send one message to one worker, who answers messages in their order."""
        pipe = self._processes[worker].stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # `receive` will tell
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()

    def receive(self, worker: int) -> dict[str, Any]:
        """Wait for a worker's next answer."""
        process = self._processes[worker]
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
        except ValueError:
            line = ""
        if not line:
            raise WorkerFailed(f"worker {worker} ended unexpectedly (exit code {process.poll()})")
        answer = json.loads(line)
        if "bad" in answer:
            raise BadInput(answer["bad"])
        if "error" in answer:
            raise WorkerFailed(f"worker {worker} failed:\n{answer['error']}")
        return answer

    def close(self) -> None:
        """End them, at once: what they hold is shared memory, which is not theirs, and files written in one go."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


@final
class Pool:
    """Tasks go to whichever worker is free, the longest first; updates come back in the order of the tasks."""

    def __init__(
        self,
        devices: Devices,
        tests: Exam,
        workers: Workers,
        setup: dict[str, Any],
        slots: int,
        audit: bool = False,
        memory_limit: float = math.inf,
    ) -> None:
        """`setup` is what a worker needs to make the same devices: names and numbers, no objects.

        `slots` is how many updates a round may bring; more are taken, at the cost of setting up again. Of what devices
        remember, `memory_limit` bytes are kept in memory.
        """
        self._workers = workers
        self._method = devices.method
        self._shared = SharedFolder()
        try:
            size = len(devices.model.vector)
            self._rows = 1 + len(devices.method.uploads) + audit
            self._size = size
            self._homes = Homes(self._shared, memory_limit)
            self._slots = 0
            parts = torch.from_numpy(np.concatenate(devices.parts))
            ends = torch.tensor(np.cumsum([len(part) for part in devices.parts]))
            data = {"images": devices.images, "labels": devices.labels, "rows": parts, "ends": ends}
            data |= {"test_images": tests.images, "test_labels": tests.labels}
            self._tests = tests
            right, self._right = self._shared.new((len(tests),), "bool")
            sent = {name: self._shared.new((size,)) for name in ("w", *devices.method.sends)}
            self._sent = {name: tensor for name, (_, tensor) in sent.items()}
            self._setup = {
                **setup,
                **{name: self._shared.share(tensor)[0].plain() for name, tensor in data.items()},
                "sent": {name: mapped.plain() for name, (mapped, _) in sent.items()},
                "right": right.plain(),
                "batch_size": devices.batch_size,
                "augment": devices.augment,
                "resize": devices.resize,
                "clip": devices.clip,
                "fast": devices.kernel is not None,  # all of them or none: their last bits differ
            }
            self._replies = torch.empty(0)
            self._prepare(slots)
        except BaseException:
            self._shared.close()
            raise

    def run(self, tasks: Sequence[Task]) -> Iterator[Update]:
        """Updates in the order of the tasks, each as soon as it is there; valid until the next call."""
        if not tasks:
            return
        self._prepare(len(tasks))
        self._sent["w"].copy_(tasks[0].w)
        for name, vector in tasks[0].shared.items():
            self._sent[name].copy_(vector)
        homes = self._homes.of_all([task.device for task in tasks], 4 * self._size)
        longest_first = sorted(range(len(tasks)), key=lambda slot: -tasks[slot].steps)
        with self._asked([_message(tasks[slot], slot, homes[slot]) for slot in longest_first]) as answers:
            answer_of = dict(zip(longest_first, answers, strict=True))
            for slot, task in enumerate(tasks):
                numbers = answer_of[slot].result()["update"]
                self._homes.kept(task.device, homes[slot])
                yield self._update(slot, numbers)

    def score(self, w: Vector) -> Scores:
        """Which test examples weights `w` get right, and the loss of each batch: every worker takes some batches."""
        self._sent["w"].copy_(w)
        batches = -(-len(self._tests) // self._tests.batch)
        pieces = min(batches, PIECES * len(self._workers))
        cuts = [min(batches * piece // pieces * self._tests.batch, len(self._tests)) for piece in range(pieces + 1)]
        with self._asked([{"score": [start, end]} for start, end in pairwise(cuts)]) as answers:
            losses = [loss for answer in answers for loss in answer.result()["losses"]]
        return self._right.clone(), losses

    @contextlib.contextmanager
    def _asked(self, messages: Sequence[dict[str, Any]]) -> Generator[list[Future[dict[str, Any]]]]:
        """Each message to whichever worker is free, in this order; the answers, for as long as the `with` lasts."""
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for index in range(len(messages)):
            waiting.put(index)
        answers = [Future[dict[str, Any]]() for _ in messages]
        with self._each_worker(lambda worker: self._drain(worker, messages, waiting, answers)):
            try:
                yield answers
            finally:  # nobody waits for the rest
                _emptied(waiting)

    def _drain(
        self,
        worker: int,
        messages: Sequence[dict[str, Any]],
        waiting: queue.SimpleQueue[int],
        answers: Sequence[Future[dict[str, Any]]],
    ) -> None:
        """Give one worker messages until none is left, or until one fails: then nobody begins another.

        It gets the next one before it is done with the last, so that it never waits for us; but not the last few, or it
        might have two left while another has none.
        """
        sent: deque[int] = deque()
        while True:
            ahead = 2 if waiting.qsize() >= 2 * len(self._workers) else 1
            try:
                while len(sent) < ahead and (index := _next(waiting)) is not None:
                    sent.append(index)
                    self._workers.send(worker, messages[index])
                if not sent:
                    return
                answers[sent[0]].set_result(self._workers.receive(worker))
                sent.popleft()
            except BaseException as error:
                for index in [*sent, *_emptied(waiting)]:
                    answers[index].set_exception(error)
                for _ in range(len(sent) - 1):  # if the worker lives, it will answer what it was sent besides
                    with contextlib.suppress(BadInput, WorkerFailed):
                        self._workers.receive(worker)
                return

    def _update(self, slot: int, numbers: dict[str, Any]) -> Update:
        vectors = self._replies[slot, :, : self._size]
        extra = {name: vectors[row] for row, name in enumerate(self._method.uploads, start=1)}
        truth = vectors[-1] if numbers["truth"] else None
        fields: dict[str, Any] = {**numbers, "delta": vectors[0], "extra": extra, "truth": truth}
        return Update(**fields)

    def _prepare(self, slots: int) -> None:
        """Room for that many updates; the workers learn of it, and of all the rest."""
        if slots <= self._slots:
            return
        # Rows start where torch would start a tensor of its own: sums of products depend on it in their last bit.
        padded = -(-self._size // ALIGNED) * ALIGNED
        mapped, self._replies = self._shared.new((slots, self._rows, padded))
        self._slots = slots
        setup = {**self._setup, "replies": mapped.plain(), "folders": self._shared.folders()}
        message = {"setup": setup, "path": sys.path}
        failures: list[BaseException] = []

        def set_up(worker: int) -> None:
            try:
                self._workers.send(worker, message)
                self._workers.receive(worker)
            except BaseException as error:
                failures.append(error)

        with self._each_worker(set_up):
            pass
        if failures:
            raise failures[0]

    @contextlib.contextmanager
    def _each_worker(self, work: Callable[[int], None]) -> Generator[None]:
        """Talk to all workers at once: a thread each, which mostly waits for its worker. At the end all are done.

        But for an interrupt: whoever sends one wants to leave now, and the workers are ended on the way out.
        """
        threads = [Thread(target=work, args=(worker,), daemon=True) for worker in range(len(self._workers))]
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

    def memories(self) -> Iterable[tuple[int, Memory]]:
        """What each device remembers."""
        return self._homes.items()

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Put back what `memories` gave."""
        self._homes.refill(memories)

    def close(self) -> None:
        """Remove the shared files; the workers belong to whoever started them."""
        self._shared.close()


def _message(task: Task, slot: int, home: Path) -> dict[str, Any]:
    """A task as JSON: its vectors stand in shared memory."""
    numbers = {name: value for name, value in vars(task).items() if name not in ("w", "shared")}
    return {"task": {**numbers, "slot": slot, "shared": list(task.shared), "home": str(home)}}


def _next(waiting: queue.SimpleQueue[int]) -> int | None:
    """The first in a queue that others may be taking from; None: there is none."""
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _emptied(waiting: queue.SimpleQueue[int]) -> list[int]:
    """All that was left in it."""
    left: list[int] = []
    while (index := _next(waiting)) is not None:
        left.append(index)
    return left
