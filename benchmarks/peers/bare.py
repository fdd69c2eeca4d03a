"""FedAvg as a bare PyTorch loop, without any simulator: the baseline of the comparison.

Persistent forked workers of one thread each, plain autograd, the weights and each worker's sum in shared memory; the
main process averages, and evaluates with as many threads as there are workers.
"""
# ruff: noqa: E402

from __future__ import annotations

import sys

from workload import CLASSES, Clock, Job

clock = Clock()

from multiprocessing.connection import Connection

import torch
from loop import accuracy, mlp, train
from torch import multiprocessing, nn

Tensors = list[torch.Tensor]
Data = tuple[torch.Tensor, torch.Tensor, Tensors]  # training images, their labels, the rows of each device
TEST_BATCHES = {"mlp": 2000, "resnet20": 100}


def make_model(name: str, shape: tuple[int, int, int]) -> nn.Module:
    """Return the MLP of the workload, or another model of fedlga, as a plain module."""
    if name == "mlp":
        return mlp()
    from fedlga.core.registry import find

    return find("model", name)(shape, CLASSES)


def serve(
    rank: int, job: Job, data: Data, model: nn.Module, weights: Tensors, total: Tensors, pipe: Connection
) -> None:
    """Run one worker: for each cohort it receives, train its share of the devices and write the sum of the models."""
    torch.set_num_threads(1)
    torch.manual_seed(job.seed + 1 + rank)
    images, labels, parts = data
    parameters = list(model.parameters())
    while (cohort := pipe.recv()) is not None:
        for summed in total:
            summed.zero_()
        for device in cohort[rank :: job.workers]:
            with torch.no_grad():
                for parameter, weight in zip(parameters, weights, strict=True):
                    parameter.copy_(weight)
            train(model, images, labels, parts[device], job)
            with torch.no_grad():
                for summed, parameter in zip(total, parameters, strict=True):
                    summed.add_(parameter)
        pipe.send(None)


def main(job: Job, out: str) -> None:
    """Run the rounds and write their seconds."""
    torch.manual_seed(job.seed)
    names = ("train_images", "train_labels", "test_images", "test_labels")
    images, labels, test_images, test_labels = (torch.from_numpy(job.arrays[name]) for name in names)
    data = images, labels, [torch.from_numpy(part) for part in job.parts]
    model = make_model(job.model, test_images.shape[1:])
    weights = [parameter.detach().clone().share_memory_() for parameter in model.parameters()]
    totals = [[torch.zeros_like(weight).share_memory_() for weight in weights] for _ in range(job.workers)]
    fork = multiprocessing.get_context("fork")
    pipes: list[Connection] = []
    for rank, total in enumerate(totals):
        here, there = fork.Pipe()
        fork.Process(target=serve, args=(rank, job, data, model, weights, total, there), daemon=True).start()
        there.close()
        pipes.append(here)
    torch.set_num_threads(job.workers)
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.data = weight  # evaluate the weights that the workers start from
    for cohort in job.cohorts:
        for pipe in pipes:
            pipe.send(cohort)
        for pipe in pipes:
            pipe.recv()
        for weight, *summed in zip(weights, *totals, strict=True):
            torch.sum(torch.stack(summed), 0, out=weight).div_(job.cohort)
        clock.round_done(accuracy(model, test_images, test_labels, TEST_BATCHES[job.model]))
    for pipe in pipes:
        pipe.send(None)
    clock.write(out, "bare", ["torch", "numpy"], job)


if __name__ == "__main__":
    main(Job.read(sys.argv[1]), sys.argv[2])
