"""FedAvg in fedlga: the pool of workers, as `fedlga run` uses it. FAST=0 trains through autograd, the general path."""
# ruff: noqa: E402

from __future__ import annotations

import os
import sys

from workload import CLASSES, Clock, Job, leave_this_folder

leave_this_folder()
clock = Clock()

import torch

from fedlga.core.round import run_rounds
from fedlga.experiments.config import Experiment
from fedlga.experiments.simulation import simulate
from fedlga.learning.examples import TensorExamples
from fedlga.learning.named import named_task
from fedlga.learning.reading import TaskData


def make_experiment(job: Job) -> Experiment:
    """Return the job as an experiment in which all devices finish."""
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
    """Run the rounds and write their seconds."""
    train, test = (
        TensorExamples(*(torch.from_numpy(job.arrays[f"{part}_{what}"]) for what in ("images", "labels")))
        for part in ("train", "test")
    )
    data = TaskData(named_task(job.model, tuple(train.inputs.shape[1:]), CLASSES), train, test)
    with simulate(make_experiment(job), data=data) as simulation:
        rounds = run_rounds(simulation.federation, simulation.start, job.rounds)
        for (_, record), cohort in zip(rounds, job.cohorts, strict=True):
            assert sorted(record.devices) == sorted(cohort), "the cohorts are those of the file"
            clock.round_done(record.accuracy or 0.0)
    clock.write(out, "fedlga", ["fedlga", "torch", "numpy"], job)


if __name__ == "__main__":
    main(Job.read(sys.argv[1]), sys.argv[2])
