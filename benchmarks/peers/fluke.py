"""FedAvg in fluke: its FedAVG with clients and models in memory, and its evaluator with accuracy alone.

fluke trains one client after the other in one process (its parallel server needs two GPUs), here in one thread: on a
busy machine, two threads were many times slower. It evaluates with as many threads as there are workers. It counts
local work in passes: for a number of batches, the client's `fit` gets only those batches.
"""
# ruff: noqa: E402

from __future__ import annotations

import itertools
import sys

from workload import CLASSES, TEST_BATCH, Clock, Job, leave_this_folder

clock = Clock()
from loop import mlp

leave_this_folder()

from collections.abc import Sequence
from typing import Any

import torch

# torchvision as published needs CUDA to register these operators, and can't be imported without them: declare them.
for operator in ("nms", "qnms"):
    torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import FederationObserver, ServerObserver
from torchmetrics import Accuracy


class StepsClient(Client):
    """A client that trains on a number of batches: a pass that ends early."""

    steps = 0

    def fit(self, override_local_epochs: int = 0) -> float:
        """Train one client as fluke does, on the first batches of a new order, or of several orders."""
        whole = self.train_set
        passes = itertools.chain.from_iterable(whole for _ in itertools.count())
        self.train_set = list(itertools.islice(passes, self.steps))
        try:
            return super().fit(1)
        finally:
            self.train_set = whole


class Watch(FederationObserver, ServerObserver):
    """Notes the time after each round's evaluation."""

    accuracy = 0.0

    def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **kwargs: Any) -> None:
        """Store the accuracy."""
        self.accuracy = evals["accuracy"]

    def end_round(self, round: int) -> None:
        """Note the time."""
        clock.round_done(self.accuracy)


def main(job: Job, out: str) -> None:
    """Run the algorithm and write the seconds of its rounds."""
    torch.set_num_threads(1)
    cohorts = iter(job.cohorts)

    class JobCohorts(Server):
        def get_eligible_clients(self, eligible_perc: float) -> Sequence[Client]:
            return [self.clients[device] for device in next(cohorts)]

        def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
            torch.set_num_threads(job.workers)
            try:
                return super().evaluate(*args, **kwargs)
            finally:
                torch.set_num_threads(1)

    class Averaging(FedAVG):
        def get_client_class(self) -> type[Client]:
            return StepsClient if job.steps else Client

        def get_server_class(self) -> type[Server]:
            return JobCohorts

    def loader(kind: str, rows: Any, batch_size: int) -> FastDataLoader:
        tensors = images[kind][rows], labels[kind][rows]
        return FastDataLoader(*tensors, num_labels=CLASSES, batch_size=batch_size, shuffle=kind == "train")

    images = {kind: torch.from_numpy(job.arrays[f"{kind}_images"]) for kind in ("train", "test")}
    labels = {kind: torch.from_numpy(job.arrays[f"{kind}_labels"]) for kind in ("train", "test")}
    StepsClient.steps = job.steps or 0
    environment = FlukeENV()
    environment.set_seed(job.seed)
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(server=True, locals=False, pre_fit=False, post_fit=False)
    right = Accuracy(task="multiclass", num_classes=CLASSES, top_k=1)
    environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=CLASSES, accuracy=right))
    clients = [loader("train", part, job.batch_size) for part in job.parts]
    data = DummyDataContainer(clients, [None] * len(clients), loader("test", slice(None), TEST_BATCH), CLASSES)
    settings = {
        "model": mlp(),
        "client": {
            "batch_size": job.batch_size,
            "local_epochs": job.passes or 1,
            "loss": torch.nn.CrossEntropyLoss,
            "optimizer": {"name": "SGD", "lr": job.lr},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
        },
        "server": {"weighted": False},
    }
    algorithm = Averaging(len(clients), DataSplitter(data), DDict(settings))
    algorithm.set_callbacks([Watch()])
    algorithm.run(job.rounds, job.cohort / len(clients), finalize=False)
    clock.write(out, "fluke", ["fluke-fl", "torch", "numpy"], job)


if __name__ == "__main__":
    job = Job.read(sys.argv[1])
    job.only_mlp()
    main(job, sys.argv[2])
