"""A worker of the pool: reads one JSON message a line, works, answers with one. Vectors go through shared memory.

Started as `python -m fedlga.backends.pool.worker`, not by multiprocessing: a user's script needs no main guard.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from fedlga.backends.memory_store import MemoryFile
from fedlga.backends.shared import SharedTensor, open_tree
from fedlga.core.aggregator import BUFFERS
from fedlga.core.method import Method
from fedlga.core.process import keep_freed_memory
from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment
from fedlga.learning.accelerator import choose_device
from fedlga.learning.evaluation import DIFFERENT_OUTPUTS, TestSet
from fedlga.learning.examples import Examples, TensorExamples
from fedlga.learning.fingerprint import take_fingerprint
from fedlga.learning.named import open_task
from fedlga.learning.problem import fit_task
from fedlga.learning.reading import read_task_data
from fedlga.learning.training import Devices, TrainingOptions


class Worker:
    """The devices and the shared vectors; devices' memories are files."""

    def __init__(self, setup: dict[str, Any]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        named = setup["model"]
        data: dict[str, Any] = {n: None if place is None else open_tree(place) for n, place in setup["data"].items()}
        method: Method = create("method", named["method"], named["settings"])
        device, options = choose_device(named["device"]), TrainingOptions(**setup["options"])
        train, test = self._find_examples(named["task"], data)
        problem = fit_task(
            open_task(named["task"]),
            train,
            named["seed"],
            device=device,
            resize=options.resize,
            label_smoothing=options.label_smoothing,
            target=named["target"],
        )
        if take_fingerprint(problem.model, train, test) != named["fingerprint"]:
            raise BadInput(
                "task: model() or data() give something else in another process; they must depend on nothing but the "
                "generators of random, numpy and torch, which are seeded"
            )
        rows = data["rows"].numpy()
        ends = [int(end) for end in data["ends"]]
        self._devices = Devices(
            method=method,
            model=problem.model,
            examples=train.to(device),
            parts=[rows[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)],
            options=options,
        )
        if self._devices.options.fast and self._devices.kernel is None:
            raise BadInput("fast: got true, and a worker cannot load the compiled code; it takes false here")
        assert self._devices.compiled or not options.compile or self._devices.kernel, (
            "compiled before the first weights"
        )
        ranges = None if data["ranges"] is None else [(int(start), int(end)) for start, end in data["ranges"]]
        self._test_set = TestSet(problem, test.to(device), options.resize, ranges)
        self._values = SharedTensor(**setup["values"]).open()
        self._outputs = None if setup["outputs"] is None else SharedTensor(**setup["outputs"]).open()
        self._sent = {name: SharedTensor(**place).open() for name, place in setup["sent"].items()}
        self._sizes = {name: setup["buffers"] if name == BUFFERS else setup["size"] for name in self._sent}
        self._replies = SharedTensor(**setup["replies"]).open()
        self._buffer_replies = SharedTensor(**setup["buffer_replies"]).open()

    def _find_examples(self, task: dict[str, Any], data: dict[str, Any]) -> tuple[Examples, Examples]:
        """Return the training and test examples: shared tensors, or read here if they are not in memory."""
        if data["train"] is not None and data["test"] is not None:
            return TensorExamples(*data["train"]), TensorExamples(*data["test"])
        read = read_task_data(open_task(task))
        train = read.train if data["train"] is None else TensorExamples(*data["train"])
        if data["test"] is not None:
            return train, TensorExamples(*data["test"])
        if data["test_rows"] is not None:
            return train, train.take(data["test_rows"].numpy())
        assert read.test is not None
        return train, read.test

    def _read_sent(self, row: int) -> dict[str, torch.Tensor]:
        """Return the vectors that an assignment begins from."""
        return {name: rows[row, : self._sizes[name]] for name, rows in self._sent.items()}

    def perform(self, message: dict[str, Any]) -> dict[str, Any]:
        """Carry out one assignment: its numbers are in the message, its vectors in shared memory."""
        sent = self._read_sent(message["row"])
        broadcast = {name: sent[name] for name in message["broadcast"]}
        assignment = Assignment(**message["assignment"], w=sent["w"], broadcast=broadcast, buffers=sent.get(BUFFERS))
        file = MemoryFile.from_plain(message["memory"])
        before = file.read()
        update, memory = self._devices.perform(assignment, before)
        if memory or before:  # an empty memory is stored too: it means the device forgot
            file.write(assignment.round, memory)
        vectors = [update.delta, *(update.uploads[name] for name in self._devices.method.uploads)]
        vectors += [update.truth] if update.truth is not None else []
        for row, vector in enumerate(vectors):
            self._replies[message["slot"], row, : len(vector)].copy_(vector)
        if update.buffers is not None:
            self._buffer_replies[message["slot"]].copy_(update.buffers)
        has = {"truth": update.truth is not None, "buffers": update.buffers is not None}
        return {"update": update.numbers(), **has}

    def score(self, start: int, end: int, memory: dict[str, Any] | None) -> Sequence[tuple[float, float]]:
        """Return the losses of the weights that were sent, on some test data; metrics go to shared memory.

        With a device's memory, it is tested with what it keeps to itself.
        """
        sent = self._read_sent(0)
        w, buffers = sent["w"], sent.get(BUFFERS)
        if memory is not None:
            w, buffers = self._devices.personalise(w, buffers, MemoryFile.from_plain(memory).read())
        scores = self._test_set.score(w, buffers, start, end)
        self._values[: len(scores.values), start:end] = scores.values
        if self._outputs is not None:
            if scores.outputs.shape[1:] != self._outputs.shape[1:]:
                raise BadInput(DIFFERENT_OUTPUTS)
            self._outputs[start:end] = scores.outputs
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
                start, end = message["score"]
                answer = {"losses": worker.score(start, end, message["memory"])}
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
