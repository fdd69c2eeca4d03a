"""The plain PyTorch pieces of the workload: the model, one device's training, the evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from workload import CLASSES, TEST_BATCH, Job

PIXELS = 784


def mlp() -> nn.Module:
    """Return the workload's model: one hidden layer of 400."""
    return nn.Sequential(nn.Flatten(), nn.Linear(PIXELS, 400), nn.ReLU(), nn.Linear(400, CLASSES))


def shuffle_batches(rows: torch.Tensor, job: Job) -> Iterator[torch.Tensor]:
    """Yield the batches that one device trains on in a round: a new order for each pass."""
    batches_left = job.steps or (job.passes or 0) * -(-len(rows) // job.batch_size)
    while batches_left > 0:
        batches = rows[torch.randperm(len(rows))].split(job.batch_size)[:batches_left]
        batches_left -= len(batches)
        yield from batches


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, rows: torch.Tensor, job: Job) -> None:
    """Train one device for one round. SGD is written out: torch.optim.SGD imports torch's compiler on first use."""
    parameters = list(model.parameters())
    for batch in shuffle_batches(rows, job):
        loss = functional.cross_entropy(model(images[batch]), labels[batch])
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=job.lr)


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, batch: int = TEST_BATCH) -> float:
    """Return the share of the test set that the model gets right."""
    right = sum(
        int((model(x).argmax(1) == y).sum()) for x, y in zip(images.split(batch), labels.split(batch), strict=True)
    )
    return right / len(labels)
