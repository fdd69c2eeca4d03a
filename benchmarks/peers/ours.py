"""FedAvg in fedlga: the pool of workers, as `fedlga run` uses it. FAST=0 takes the general path, through autograd."""
# ruff: noqa: E402

from __future__ import annotations

import os
import sys

from workload import CLASSES, Clock, Job, leave_this_folder

leave_this_folder()
clock = Clock()

import torch

from fedlga.data.datasets import Data
from fedlga.experiment import Experiment
from fedlga.federation import rounds
from fedlga.simulation import simulate


def experiment(job: Job) -> Experiment:
    """The job as an experiment: everyone finishes."""
    return Experiment(
        model=job.model,
        method="fedavg",
        fleet="equal",
        rounds=job.rounds,
        cohort=job.cohort,
        devices=len(job.parts),
        epochs=job.units,
        steps_per_epoch=job.steps_per_unit,
        batch_size=job.batch_size,
        lr=job.lr,
        workers=job.workers,
        seed=job.seed,
        fast=os.environ.get("FAST") != "0",
    )


def main(job: Job, out: str) -> None:
    """Run the rounds and write what they took."""
    names = ("train_images", "train_labels", "test_images", "test_labels")
    data = Data(*(torch.from_numpy(job.arrays[name]) for name in names), classes=CLASSES)
    with simulate(experiment(job), data=data) as simulation:
        for (_, record), cohort in zip(
            rounds(simulation.federation, simulation.start, job.rounds), job.cohorts, strict=True
        ):
            assert sorted(record.devices) == sorted(cohort), "the cohorts are those of the file"
            clock.round_done(record.accuracy or 0.0)
    clock.write(out, "fedlga", ["fedlga", "torch", "numpy"], job)


if __name__ == "__main__":
    main(Job.read(sys.argv[1]), sys.argv[2])
