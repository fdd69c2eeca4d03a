"""FedAvg in FedJAX: its federated_averaging on the jit backend of for_each_client, which trains one client at a time.

XLA's threads are the workers. That is FedJAX's default; FEDJAX_BACKEND=pmap trains as many clients at once as there are
workers, each on a host device of its own. The model is a Haiku MLP that starts like torch's; FedJAX's datasets batch
and shuffle, and its evaluate_model evaluates.
"""
# ruff: noqa: E402

from __future__ import annotations

import os
import sys

from workload import CLASSES, TEST_BATCH, Clock, Job, leave_this_folder

clock = Clock()
leave_this_folder()
job = Job.read(sys.argv[1])
BACKEND = os.environ.get("FEDJAX_BACKEND", "jit")
os.environ["JAX_PLATFORMS"] = "cpu"
if BACKEND == "pmap":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={job.workers}"
    os.environ["JAX_PMAP_NO_RANK_REDUCTION"] = "0"  # FedJAX's backend expects it; it was JAX's default once

import warnings
from collections.abc import Mapping

import fedjax
import haiku as hk
import jax
import numpy as np


def forward(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return the MLP's outputs. It starts like torch's: uniform within one over the root of the inputs."""

    def linear(x: jax.Array, outputs: int) -> jax.Array:
        bound = x.shape[-1] ** -0.5
        start = hk.initializers.RandomUniform(-bound, bound)
        return hk.Linear(outputs, w_init=start, b_init=start)(x)

    return linear(jax.nn.relu(linear(hk.Flatten()(batch["x"]), 400)), CLASSES)


def main(job: Job, out: str) -> None:
    """Run the algorithm and write the seconds of its rounds."""
    fedjax.set_for_each_client_backend(BACKEND)
    images, labels = job.arrays["train_images"], job.arrays["train_labels"]
    devices = [fedjax.ClientDataset({"x": images[part], "y": labels[part]}) for part in job.parts]
    test = fedjax.ClientDataset({"x": job.arrays["test_images"], "y": job.arrays["test_labels"]})
    test_batches = [jax.tree_util.tree_map(jax.numpy.asarray, b) for b in test.padded_batch(batch_size=TEST_BATCH)]
    model = fedjax.create_model_from_haiku(
        hk.transform(forward),
        {"x": images[:1], "y": labels[:1]},
        lambda batch, logits: fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], logits),
        {"accuracy": fedjax.metrics.Accuracy()},
    )
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(job.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=job.batch_size, num_epochs=job.passes, num_steps=job.steps),
    )
    np.random.seed(job.seed)
    key = jax.random.PRNGKey(job.seed)
    state = algorithm.init(model.init(key))
    for cohort in job.cohorts:
        key, use = jax.random.split(key)
        keys = jax.random.split(use, len(cohort))
        clients = [(device, devices[device], k) for device, k in zip(cohort, keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        clock.round_done(fedjax.evaluate_model(model, state.params, test_batches)["accuracy"])
    clock.write(out, "fedjax", ["fedjax", "jax", "jaxlib", "dm-haiku", "numpy"], job)


if __name__ == "__main__":
    job.only_mlp()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
    main(job, sys.argv[2])
