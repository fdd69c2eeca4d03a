"""A worker of the pool: reads one JSON message a line, works, answers with one. Vectors go through shared memory.

Started as `python -m fedlga.backends.worker`, never by import: a user's script needs no main guard.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from ..evaluation import Exam
from ..local import Devices
from ..methods import make_method
from ..models import make_model
from ..settings import BadInput
from ..tensors import keep_freed_memory
from ..types import Task
from .memories import recall, remember
from .shared import Mapped


class Worker:
    """The devices, the shared vectors, and what devices remember, as files."""

    def __init__(self, setup: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        method = make_method(setup["method"], setup["options"])
        images, labels = (Mapped(**setup[name]).open() for name in ("images", "labels"))
        rows, ends = (Mapped(**setup[name]).open().numpy() for name in ("rows", "ends"))
        starts = [0, *ends[:-1].tolist()]
        self._devices = Devices(
            method=method,
            model=make_model(setup["model"], tuple(setup["shape"]), setup["classes"], setup["seed"]),
            images=images,
            labels=labels,
            parts=[rows[start:end] for start, end in zip(starts, ends.tolist(), strict=True)],
            batch_size=setup["batch_size"],
            augment=setup["augment"],
            resize=setup["resize"],
            clip=setup["clip"],
            fast=setup["fast"],
        )
        if setup["fast"] and self._devices.kernel is None:
            raise BadInput("fast: got true, and a worker cannot load the compiled code; it takes false here")
        tests = (Mapped(**setup[name]).open() for name in ("test_images", "test_labels"))
        self._tests = Exam(self._devices.model, *tests, resize=setup["resize"])
        self._right = Mapped(**setup["right"]).open()
        self._uploads = method.uploads
        self._sent = {name: Mapped(**mapped).open() for name, mapped in setup["sent"].items()}
        self._replies = Mapped(**setup["replies"]).open()

    def work(self, message: dict[str, Any]) -> dict[str, Any]:
        """One task: the numbers come in the message, the vectors stand in shared memory."""
        slot, shared, home = message.pop("slot"), message.pop("shared"), Path(message.pop("home"))
        task = Task(**message, w=self._sent["w"], shared={name: self._sent[name] for name in shared})
        before = recall(home, task.device)
        update, memory = self._devices.work(task, before)
        if memory or before:  # to forget is to remember nothing
            remember(home, task.device, memory)
        vectors = [update.delta, *(update.extra[name] for name in self._uploads)]
        vectors += [update.truth] if update.truth is not None else []
        for row, vector in enumerate(vectors):
            self._replies[slot, row, : len(vector)].copy_(vector)
        numbers = {f.name: getattr(update, f.name) for f in dataclasses.fields(update)}
        return {**numbers, "delta": None, "extra": None, "truth": update.truth is not None}

    def score(self, start: int, end: int) -> list[float]:
        """Losses of the weights that were sent, on some test data; which were right goes to shared memory."""
        self._right[start:end], losses = self._tests.scored(self._sent["w"], start, end)
        return losses


def main() -> None:
    """Answer messages until the pool ends us."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a model prints must not stand among the answers
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
                raise AssertionError("a task before the set-up")
            elif "score" in message:
                answer = {"losses": worker.score(*message["score"])}
            else:
                answer = {"update": worker.work(message["task"])}
        except BadInput as error:
            answer = {"bad": str(error)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        try:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
        except BrokenPipeError:
            break
    # The pipe closed without our being ended: whoever started us is gone, and cannot tidy up after himself.
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
