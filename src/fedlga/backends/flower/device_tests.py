"""The joint model tested on the devices: each on data that it holds out. Sums leave a device, and no example does.

Aggregator -> device: the weights. Device -> aggregator: for each metric, its sum over the device's test examples and
what it is to be divided by; the same of the loss; the number of examples.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedlga.backends.flower.messages import NUMBERS, SETUP, VECTORS, Refused, pack_vectors, unpack_vectors
from fedlga.core.aggregator import BUFFERS
from fedlga.core.backend import Scores
from fedlga.core.settings import BadInput
from fedlga.learning.evaluation import TestSet, has_each
from fedlga.learning.metrics import BUILT_IN, NamedMetric

if TYPE_CHECKING:
    from fedlga.core.types import Vector

LOSS_SUM, LOSS_WEIGHT = "loss sum", "loss weight"
MOST_TIMES_WEIGHT = 100.0  # the median device's, as of examples in training
MOST_TIMES_VALUE = 1e6  # an honest loss may be hundreds of times that of devices which the model serves well
LEAST_KNOWN = 3  # devices, before anything counts as usual

Sums = dict[str, tuple[float, float]]  # by metric: a sum, and what it is to be divided by


def pack_test(w: Vector, buffers: Vector | None, setup: Mapping[str, Any]) -> RecordDict:
    """Return the message that asks a device to test weights."""
    vectors = {"w": w} | ({} if buffers is None else {BUFFERS: buffers})
    return RecordDict({VECTORS: pack_vectors(vectors), SETUP: ConfigRecord(dict(setup))})


def unpack_test(message: Message) -> tuple[Vector, Vector | None]:
    """Return the weights and buffers that a message asks to test."""
    try:
        vectors = unpack_vectors(message.content.array_records[VECTORS])
        return vectors["w"], vectors.get(BUFFERS)
    except Exception as error:  # unknown bytes may make a reader raise anything
        raise BadInput(f"evaluation: it does not have the agreed form ({type(error).__name__})") from error


def pack_sums(device: int, test_set: TestSet, scores: Scores) -> RecordDict:
    """Return what a device replies."""
    numbers: dict[str, Any] = {"device": device, "examples": scores.values.shape[1]}
    for row, metric in enumerate(test_set.each_metrics):
        both = scores.values[row].double().sum(0)
        numbers |= {f"{metric.name} sum": float(both[0]), f"{metric.name} weight": float(both[1])}
    total, weight = (sum(batch[column] for batch in scores.losses) for column in (0, 1))
    numbers |= {LOSS_SUM: float(total), LOSS_WEIGHT: float(weight)}
    return RecordDict({NUMBERS: MetricRecord(numbers)})


def unpack_sums(content: RecordDict, device: int, metrics: Sequence[NamedMetric]) -> Sums:
    """Return what a device measured; Refused if it cannot be right."""
    numbers = content.metric_records.get(NUMBERS)
    names = [metric.name for metric in metrics if has_each(metric)]
    wanted = {f"{name} {what}" for name in (*names, "loss") for what in ("sum", "weight")} | {"device", "examples"}
    if numbers is None or set(content) != {NUMBERS} or set(numbers) != wanted:
        raise Refused("its evaluation does not have the agreed form")
    values: dict[str, float] = {}
    for name, value in numbers.items():
        if isinstance(value, list) or not math.isfinite(value):
            raise Refused(f"its evaluation says {name} {value}")
        values[name] = value
    if values["device"] != device:
        raise Refused(f"its evaluation is of device {values['device']:g}")
    sums = {name: (values[f"{name} sum"], values[f"{name} weight"]) for name in dict.fromkeys((*names, "loss"))}
    by_name = {metric.name: metric for metric in metrics}
    for name, (total, weight) in sums.items():
        if weight < 0 or (weight == 0 and total != 0):
            raise Refused(f"its evaluation says {name} {total:g} of {weight:g}")
        if weight and name in by_name:
            _check_value(by_name[name], total / weight)
    return sums


def _check_value(metric: NamedMetric, mean: float) -> None:
    try:
        value = metric.finish(mean)
    except (ValueError, OverflowError) as error:
        raise Refused(f"its evaluation says {metric.name} {mean:g}") from error
    share = metric.each is BUILT_IN["accuracy"].each
    if not math.isfinite(value) or (share and not 0 <= value <= 1):
        raise Refused(f"its evaluation says {metric.name} {mean:g}")


def find_unbelievable(measured: Mapping[int, Sums]) -> dict[int, str]:
    """Return the devices whose figures are far beyond those of the others, and why they are left out."""
    refused: dict[int, str] = {}
    if len(measured) < LEAST_KNOWN:
        return refused
    for name in next(iter(measured.values())):
        weights = statistics.median(sums[name][1] for sums in measured.values())
        sizes = [abs(sums[name][0] / sums[name][1]) for sums in measured.values() if sums[name][1]]
        usual = statistics.median(sizes) if sizes else 0.0
        for device, sums in measured.items():
            total, weight = sums[name]
            if weight > MOST_TIMES_WEIGHT * max(weights, 1.0):
                refused[device] = f"its evaluation claims a weight of {weight:g}, far more than is usual"
            elif weight and abs(total / weight) > MOST_TIMES_VALUE * max(usual, 1.0):
                refused[device] = f"its evaluation says {name} {total / weight:g}, far more than is usual"
    return refused


def as_scores(measured: Mapping[int, Sums], devices: int, metrics: Sequence[NamedMetric]) -> Scores:
    """Return scores in which a device stands for an example; one that measured nothing has no weight."""
    names = [metric.name for metric in metrics if has_each(metric)]
    values = torch.zeros(len(names), devices, 2, dtype=torch.float64, device="cpu")
    for device, sums in measured.items():
        for row, name in enumerate(names):
            values[row, device] = torch.tensor(sums[name], dtype=torch.float64)
    return Scores(values, [sums["loss"] for sums in measured.values()])
