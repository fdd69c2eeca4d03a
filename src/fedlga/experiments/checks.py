"""What no field of an experiment can say alone: which settings go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlga.core.registry import find
from fedlga.core.settings import BadInput
from fedlga.experiments.config import OWN, names_in_use

if TYPE_CHECKING:
    from fedlga.experiments.config import Experiment


def check_together(e: Experiment) -> None:
    """Check what no field can say alone."""
    if e.dataset == OWN and e.fleet != "real" and e.task is None:
        raise BadInput(f"dataset: got {OWN!r} with fleet {e.fleet!r}; only tasks and real devices have their own data")
    if e.task is not None and (e.dataset, e.model) != (OWN, OWN):
        name = "dataset" if e.dataset != OWN else "model"
        raise BadInput(f"{name}: got {getattr(e, name)!r} with a task; the task has its own {name}")
    # One that names no dataset may be meant for a task that comes later: what it was given is checked then.
    given: frozenset[str] = e.__dict__.get("_given", frozenset())
    is_open = e.task is None and not {"dataset", "model"} & given
    if e.task is None and not is_open:
        if e.partition == OWN:
            raise BadInput("partition: got 'own' without a task; only a task has a partition of its own")
        for name in ("devices", "cohort"):
            if getattr(e, name) == 0:
                raise BadInput(f"{name}: got 0; without a task it takes a whole number of at least 1")
        if e.target is None:
            raise BadInput("target: got none; it takes a number from 0 to 1")
        if e.dataset != OWN and e.metric not in (None, "accuracy", "loss"):
            raise BadInput(f"metric: got {e.metric!r}; for a dataset it takes accuracy or loss")
    is_accuracy = e.metric == "accuracy" or (e.metric is None and e.task is None and not is_open)
    if e.target is not None and is_accuracy and not 0 <= e.target <= 1:
        raise BadInput(f"target: got {e.target:g}; as an accuracy it takes a number from 0 to 1")
    _check_local_training(e)
    method = find("method", e.method)
    find("policy", e.policy)
    if method.policies and e.policy not in method.policies:
        raise BadInput(
            f"stragglers: got {e.policy!r}; method {e.method} takes {', '.join(method.policies)}"
            + (" (it is averaging with complete: for another policy use method fedavg)" if e.method == "fedlga" else "")
        )
    schedule = find("schedule", e.schedule)
    if e.policy == "complete" and e.options.get("complete", {}).get("private"):
        if e.audit:
            raise BadInput("audit: got true with private; an audit looks at single updates")
        if schedule.is_stale:
            raise BadInput(f"schedule: got {e.schedule!r} with private; it takes rounds")
        if e.aggregation != "mean":
            raise BadInput(f"aggregation: got {e.aggregation!r} with private; only a mean is known from a sum")
    if schedule.policies and e.policy not in schedule.policies:
        raise BadInput(f"stragglers: got {e.policy!r}; schedule {e.schedule!r} takes {', '.join(schedule.policies)}")
    if schedule.is_stale and (why := method.needs_fresh):
        raise BadInput(f"schedule: got {e.schedule!r}; method {e.method} takes rounds or over-selection: {why}")
    if e.fleet == "real" and not schedule.is_real:
        raise BadInput(f"schedule: got {e.schedule!r} with fleet 'real'; it takes rounds")
    fits = e.cohort <= e.devices or e.devices == 0 or (is_open and "cohort" not in given)
    if not fits and e.sampling == "without-replacement":
        raise BadInput(f"cohort: got {e.cohort}; it takes at most the {e.devices} devices there are")
    for kind in names_in_use(e.context()):
        e.settings(kind)


def _check_local_training(e: Experiment) -> None:
    schedule = e.lr_schedule
    if schedule == "step" and not e.lr_decay:
        raise BadInput("lr_decay: got 0 with lr_schedule 'step'; it takes a number above 0 and below 1")
    if schedule in ("constant", "cosine") and e.lr_decay:
        raise BadInput(f"lr_decay: got {e.lr_decay:g} with lr_schedule {schedule!r}; it goes with exponential and step")
    if e.lr_warmup >= e.rounds:
        raise BadInput(f"lr_warmup: got {e.lr_warmup}; it takes fewer than the {e.rounds} rounds")
    if e.local_optimizer != "sgd":
        if e.momentum:
            raise BadInput(f"momentum: got {e.momentum:g} with local_optimizer {e.local_optimizer!r}; it goes with sgd")
        if why := find("method", e.method).needs_sgd:
            raise BadInput(f"local_optimizer: got {e.local_optimizer!r}; method {e.method} takes sgd: {why}")
        if e.policy == "complete" and e.options.get("complete", {}).get("scale") == "printed":
            raise BadInput(
                f"local_optimizer: got {e.local_optimizer!r}; scale 'printed' takes sgd: "
                "it takes -delta / (lr * steps) for the mean gradient"
            )
    if e.record is not None and e.batch_norm == "device":
        raise BadInput(
            "record: got 'gradient' with batch_norm 'device'; without one joint model there is no gradient of it"
        )
    if e.batch_norm == "device" and e.backend == "flower":
        raise BadInput("batch_norm: got 'device' with backend 'flower'; it takes a simulation, serial or pool")
