"""A worker of the pool: reads one JSON message a line, works, answers with one. Vectors go through shared memory.

Started as `python -m fedlga.backends.pool.worker`, not by multiprocessing: a user's script needs no main guard.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from typing import Any

import torch

from fedlga.backends.memory_store import MemoryFile
from fedlga.backends.shared import SharedTensor
from fedlga.core.method import Method
from fedlga.core.process import keep_freed_memory
from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment
from fedlga.learning.evaluation import TestSet
from fedlga.learning.models import make_model
from fedlga.learning.training import Devices, TrainingOptions


class Worker:
    """The devices and the shared vectors; devices' memories are files."""

    def __init__(self, setup: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        named, data = setup["model"], {name: SharedTensor(**place).open() for name, place in setup["data"].items()}
        method: Method = create("method", named["method"], named["settings"])
        rows = data["rows"].numpy()
        ends = [int(end) for end in data["ends"]]
        self._devices = Devices(
            method=method,
            model=make_model(named["model"], tuple(named["shape"]), named["classes"], named["seed"]),
            images=data["images"],
            labels=data["labels"],
            parts=[rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)],
            options=TrainingOptions(**setup["options"]),
        )
        if self._devices.options.fast and self._devices.kernel is None:
            raise BadInput("fast: got true, and a worker cannot load the compiled code; it takes false here")
        resize = self._devices.options.resize
        self._test_set = TestSet(self._devices.model, data["test_images"], data["test_labels"], resize)
        self._right = SharedTensor(**setup["right"]).open()
        self._sent = {name: SharedTensor(**place).open() for name, place in setup["sent"].items()}
        self._replies = SharedTensor(**setup["replies"]).open()

    def perform(self, message: dict[str, Any]) -> dict[str, Any]:
        """Carry out one assignment: its numbers are in the message, its vectors in shared memory."""
        broadcast = {name: self._sent[name] for name in message["broadcast"]}
        assignment = Assignment(**message["assignment"], w=self._sent["w"], broadcast=broadcast)
        file = MemoryFile.from_plain(message["memory"])
        before = file.read()
        update, memory = self._devices.perform(assignment, before)
        if memory or before:  # an empty memory is stored too: it means the device forgot
            file.write(assignment.round, memory)
        vectors = [update.delta, *(update.uploads[name] for name in self._devices.method.uploads)]
        vectors += [update.truth] if update.truth is not None else []
        for row, vector in enumerate(vectors):
            self._replies[message["slot"], row, : len(vector)].copy_(vector)
        return {"update": update.numbers(), "truth": update.truth is not None}

    def score(self, start: int, end: int) -> list[float]:
        """Return the losses of the weights that were sent, on some test data; what was right goes to shared memory."""
        scores = self._test_set.score(self._sent["w"], start, end)
        self._right[start:end] = scores.right
        return scores.losses


def main() -> None:
    """Answer messages until the pool kills this process."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a model prints must not come between the answers
    worker, folders = None, list[str]()
    for line in sys.stdin:
        message = json.loads(line)
        try:
            if "setup" in message:
                sys.path[:] = message["path"]
                folders = message["setup"].pop("folders")
                worker = Worker(message["setup"])
                answer: dict[str, Any] = {"ready": True}
            elif worker is None:
                raise AssertionError("an assignment before the set-up")
            elif "score" in message:
                answer = {"losses": worker.score(*message["score"])}
            else:
                answer = worker.perform(message)
        except BadInput as error:
            answer = {"bad": str(error)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            break
    # The pipe was closed, but this process was not killed: its parent is gone and cannot remove its files.
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
