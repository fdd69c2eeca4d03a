"""FedAvg in pfl-research: FederatedAveraging on a SimulatedBackend, one process of one thread for each worker.

The processes connect through pfl's own PFL_WORKER_ADDRESSES and PFL_WORKER_RANK, and reduce with torch.distributed
(gloo). This script is rank 0 and starts the others. Each evaluates its part of the test set with pfl's
CentralEvaluationCallback, changed to run after the first round too. The users' own evaluation is switched off.
"""
# ruff: noqa: E402

from __future__ import annotations

import os
import sys

from workload import TEST_BATCH, Clock, Job, leave_this_folder

clock = Clock()
os.environ["PFL_PYTORCH_DEVICE"] = "cpu"
from loop import mlp, shuffle_batches

leave_this_folder()

import asyncio
import dataclasses
import socket
import subprocess
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

RANK = "PFL_WORKER_RANK"


def start_others(job: Job) -> list[subprocess.Popen[bytes]]:
    """Start a process for each other rank, unless this process is one of them."""
    if RANK in os.environ or job.workers == 1:
        return []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    os.environ |= {"PFL_WORKER_ADDRESSES": ",".join([address] * job.workers), RANK: "0"}
    command = [sys.executable, *sys.argv]
    return [subprocess.Popen(command, env={**os.environ, RANK: str(rank)}) for rank in range(1, job.workers)]  # noqa: S603


def main(job: Job, out: str) -> None:
    """Run this rank; rank 0 writes the seconds of the rounds."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDatasetBase
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.internal.ops.selector import get_framework_module
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    worker = get_framework_module().distributed
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    np.random.seed(job.seed)  # pfl draws from it, the same on all ranks

    class Model(torch.nn.Module):
        """The MLP with the two methods that pfl asks for."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp()

        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(self.layers(x), y)

        @torch.no_grad()
        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
            return {"accuracy": Weighted(int((self.layers(x).argmax(1) == y).sum()), len(y))}

    one_pass = dataclasses.replace(job, units=job.steps or 1)

    class Device(Dataset):
        """A device's rows of the training data, in a new order for each pass."""

        def __len__(self) -> int:
            return len(self.raw_data[2])

        def iter(self, batch_size: int | None) -> Iterator[list[torch.Tensor]]:
            images, labels, rows = self.raw_data
            for batch in shuffle_batches(rows, one_pass):
                yield [images[batch], labels[batch]]

    class Cohorts(FederatedDatasetBase):
        """The devices of each round's cohort, assigned to the workers in turn."""

        def __init__(self) -> None:
            super().__init__()
            self.cohorts = iter(job.cohorts)
            data = torch.from_numpy(job.arrays["train_images"]), torch.from_numpy(job.arrays["train_labels"])
            self.devices = [Device((*data, torch.from_numpy(part)), user_id=str(i)) for i, part in enumerate(job.parts)]

        def __next__(self) -> tuple[Device, int]:
            raise NotImplementedError("pfl takes whole cohorts")

        def get_cohort(self, cohort_size: int) -> Iterator[tuple[Device, int]]:
            for device in next(self.cohorts)[worker.global_rank :: worker.world_size]:
                yield self.devices[device], int(self._get_seed())

    class Averaging(FederatedAveraging):
        """FedAvg without the evaluation of users around training, which pfl always does in the first round."""

        def get_next_central_contexts(self, *args: Any, **kwargs: Any) -> Any:
            contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
            if contexts is not None:
                contexts = tuple(dataclasses.replace(context, do_evaluation=False) for context in contexts)
            return contexts, model, metrics

    class Evaluation(CentralEvaluationCallback):
        """pfl's evaluation of the starting weights and of every round: pfl itself leaves out the first round."""

        def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
            super().on_train_begin(model=model)  # from it, pfl learns that the evaluation can be split
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            stop, metrics = self._eval(model)
            clock.round_done(metrics.to_simple_dict()["Central val | accuracy"])
            return stop, metrics

    module = Model()
    torch.manual_seed(job.seed + 1 + worker.global_rank)  # the batches differ from rank to rank, the weights don't
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    test = Dataset((torch.from_numpy(job.arrays["test_images"]), torch.from_numpy(job.arrays["test_labels"])))
    cohorts = Cohorts()
    asyncio.set_event_loop(asyncio.new_event_loop())
    Averaging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=cohorts, val_data=cohorts),
        model,
        NNTrainHyperParams(
            local_batch_size=job.batch_size,
            local_num_epochs=job.passes,
            local_num_steps=job.steps,
            local_learning_rate=job.lr,
        ),
        callbacks=[Evaluation(test, NNEvalHyperParams(local_batch_size=TEST_BATCH))],
        send_metrics_to_platform=False,
    )
    if worker.global_rank == 0:
        clock.write(out, "pfl", ["pfl", "torch", "numpy"], job)


if __name__ == "__main__":
    job = Job.read(sys.argv[1])
    job.only_mlp()
    warnings.filterwarnings("ignore", category=FutureWarning)
    others = start_others(job)
    main(job, sys.argv[2])
    for other in others:
        if other.wait():
            sys.exit(f"pfl: a worker failed with {other.returncode}")
