"""FedAvg in Flower's simulation: its Message API on Ray, as many actors at once as there are workers, one CPU each.

`run_simulation` runs a ServerApp and a ClientApp. The strategy is FedAvg, with the job's cohorts in place of its own
choice of nodes. The client trains in one thread and keeps the data in its actor's process. The server evaluates after
each round.
"""
# ruff: noqa: E402

from __future__ import annotations

import os
import sys

from workload import Clock, Job

clock = Clock()
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import logging
import time
from collections.abc import Iterable
from functools import cache

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from loop import accuracy, mlp, train

client = ClientApp()


@cache
def load_job(path: str) -> tuple[Job, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """Return what an actor's process keeps: the job, a model to train, the training data."""
    torch.set_num_threads(1)
    job = Job.read(path)
    torch.manual_seed(job.seed + os.getpid())
    images, labels = torch.from_numpy(job.arrays["train_images"]), torch.from_numpy(job.arrays["train_labels"])
    return job, mlp(), images, labels


@client.train()
def fit(message: Message, context: Context) -> Message:
    """Train one device for one round."""
    config = message.content["config"]
    job, model, images, labels = load_job(config["job"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    rows = torch.from_numpy(job.parts[config["device"]])
    train(model, images, labels, rows, job)
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class Cohorts(FedAvg):
    """FedAvg with the job's cohorts, and one node for each device."""

    def __init__(self, job: Job, path: str) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.job, self.path, self.nodes = job, path, list[int]()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return a message for each device of the round's cohort."""
        while len(self.nodes) < len(self.job.parts):
            time.sleep(0.01)
            self.nodes = sorted(grid.get_node_ids())

        def message(device: int) -> Message:
            config = ConfigRecord({"job": self.path, "device": device})
            content = RecordDict({"arrays": arrays, "config": config})
            return Message(content, self.nodes[device], "train")

        return [message(device) for device in self.job.cohorts[server_round - 1]]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return FedAvg's mean; RuntimeError unless all devices answered."""
        replies = list(replies)
        answered = sum(not reply.has_error() for reply in replies)
        if answered != self.job.cohort:
            raise RuntimeError(f"round {server_round}: {answered} of {self.job.cohort} devices answered")
        return super().aggregate_train(server_round, replies)


def main(path: str, out: str) -> None:
    """Run the simulation and write the seconds of its rounds."""
    job = Job.read(path)
    job.only_mlp()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(job.workers)
    torch.manual_seed(job.seed)
    model = mlp()
    images, labels = torch.from_numpy(job.arrays["test_images"]), torch.from_numpy(job.arrays["test_labels"])
    server = ServerApp()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        right = accuracy(model, images, labels)
        if server_round:  # Flower also evaluates the starting weights
            clock.round_done(right)
        return MetricRecord({"accuracy": right})

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        start = ArrayRecord(model.state_dict())
        Cohorts(job, path).start(grid, start, num_rounds=job.rounds, evaluate_fn=evaluate)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": job.workers}}
    run_simulation(server, client, num_supernodes=len(job.parts), backend_config=resources)
    clock.write(out, "flower", ["flwr", "ray", "torch", "numpy"], job)


if __name__ == "__main__":
    import flower  # by its name, so that the actors import the client too, and keep its data

    flower.main(os.path.realpath(sys.argv[1]), sys.argv[2])
