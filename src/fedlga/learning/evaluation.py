"""How good some weights are on the test data: overall, and as the devices would see it on data like their own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from fedlga.core.backend import Scores
from fedlga.core.settings import BadInput
from fedlga.learning.accelerator import CPU
from fedlga.learning.examples import Examples, move_batch
from fedlga.learning.failures import explain_loss, explain_model
from fedlga.learning.metrics import BUILT_IN, IGNORED, LOSS, NamedMetric, class_dimension
from fedlga.learning.problem import (
    Problem,
    find_wrong_label,
    mean_squared_error,
    refuse_ignored,
    resize_batch,
    sequence_cross_entropy,
    takes_every_label,
)
from fedlga.learning.trees import Tree, join_trees, leaves_of, map_tree

if TYPE_CHECKING:
    from fedlga.core.types import Metrics, Vector

Ranges = Sequence[tuple[int, int]]  # the test examples that each device held out, one range a device

EVALUATION_BATCH = 1000
SMALL_BATCH = 100  # what convolutions make of these still fits the cache; with 2000 it takes three times as long
DIFFERENT_OUTPUTS = (
    "metrics(): a metric over all of the test data needs outputs and targets of one shape, and these differ from "
    "batch to batch; "
    "return a value for each example"
)
LARGE_OUTPUT = 100  # numbers that an example's output has at most for the larger batch


@dataclass(frozen=True)
class TestSet:
    """The test data, and the model that is tested on it."""

    __test__ = False  # not a test of pytest's

    problem: Problem
    examples: Examples
    resize: int = 0
    ranges: Ranges | None = None  # the examples that each device held out, if devices did

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def batch(self) -> int:
        """Examples at a time. Work is divided between batches: other sums would differ in their last bit."""
        p = self.problem
        large = p.output_shape is None or len(p.output_shape) > 1 or p.output_shape > (LARGE_OUTPUT,)
        return SMALL_BATCH if p.model.convolves or large else EVALUATION_BATCH

    @property
    def keeps_outputs(self) -> bool:
        """Whether a metric needs the outputs of all examples at once."""
        return any(m.whole is not None for m in self.problem.metrics)

    @property
    def keeps_targets(self) -> bool:
        """Whether the outputs go with targets that only batches have: those of a lazy dataset, as it collates them."""
        return self.keeps_outputs and not self.examples.knows_targets

    @property
    def each_metrics(self) -> list[NamedMetric]:
        """The metrics that every example has; the loss, if it is one of the metrics, is among them."""
        return [m for m in self.problem.metrics if has_each(m)]

    @torch.no_grad()
    def score(self, w: Vector, buffers: Vector | None = None, start: int = 0, end: int | None = None) -> Scores:
        """Return the metrics of the examples in [start, end) under weights `w`, and the summed loss of each batch."""
        end = len(self) if end is None else end
        model = self.problem.model
        model.load(w, buffers)
        model.module.eval()
        with torch.random.fork_rng(devices=[]):
            return self._score(start, end)

    def _score(self, start: int, end: int) -> Scores:
        model, each = self.problem.model, self.each_metrics
        values = torch.zeros(len(each), end - start, 2, device=CPU)
        losses: list[tuple[float, float]] = []
        kept: list[tuple[Any, Tree]] = []
        for first in range(start, end, self.batch):
            torch.manual_seed(first)  # for models that draw also when they are tested
            last = min(first + self.batch, end)
            batch = move_batch(self.examples.piece(first, last), model.device)
            inputs, targets = resize_batch(batch, self.resize)
            if self.examples.in_memory is None and takes_every_label(self.problem.loss):
                refuse_ignored(targets)
            try:
                outputs = model.call(inputs)
            except Exception as error:
                raise explain_model(error, inputs) from error
            if isinstance(outputs, torch.Tensor) and outputs.is_floating_point():
                outputs = outputs.float()  # sums over examples in lower precision would lose them
            for row, metric in enumerate(each):
                if metric.each is None:
                    found = self._loss_of_each(outputs, targets, first)
                else:
                    found = metric.each(outputs, targets)
                values[row, first - start : last - start] = found.to(CPU)
            losses.append(self._sum_loss(outputs, targets, last - first))
            if self.keeps_outputs:
                kept.append((map_tree(_as_float32, outputs), map_tree(lambda leaf: leaf.to(CPU), targets)))
        model.module.train()
        if not kept:
            return Scores(values, losses)
        joined = _join_outputs([outputs for outputs, _ in kept])
        return Scores(
            values, losses, joined, _join_outputs([targets for _, targets in kept]) if self.keeps_targets else None
        )

    def _loss_of_each(self, outputs: Any, targets: Tree, first: int) -> torch.Tensor:
        """Return examples x 2, the loss of each example and what it is divided by.

        A loss of the user's own gives one number for a batch. It is asked for those examples of the batch that belong
        together, a device's or a class's, and each of them gets their mean. Without either: nothing is known.
        """
        count = len(next(leaves_of(targets)))
        values = torch.zeros(count, 2, device=CPU)
        if self.problem.loss in BUILT_IN_LOSSES:
            return BUILT_IN_LOSSES[self.problem.loss](outputs, targets)
        for rows in self._group(targets, first, count):
            place = rows.to(self.problem.model.device)
            own = (map_tree(lambda leaf: leaf.index_select(0, place), tree) for tree in (outputs, targets))  # noqa: B023
            values[rows] = torch.tensor([self._mean_loss(*own), 1.0], device=CPU)
        return values

    def _group(self, targets: Tree, first: int, count: int) -> list[torch.Tensor]:
        """Return the rows of a batch that belong to the same device, or are of the same class."""
        if self.ranges is not None:
            cuts = [(max(start, first) - first, min(end, first + count) - first) for start, end in self.ranges]
            return [torch.arange(start, end, device=CPU) for start, end in cuts if end > start]
        if self.problem.classes is None:
            return []
        labels = targets.to(CPU)
        return [(labels == label).nonzero().reshape(-1) for label in labels.unique()]

    def _mean_loss(self, outputs: Any, targets: Tree) -> float:
        try:
            return float(self.problem.loss(outputs, targets))
        except Exception as error:
            raise explain_loss(error, outputs, targets) from error

    def _sum_loss(self, outputs: Any, targets: Tree, count: int) -> tuple[float, float]:
        """Return the summed loss of a batch, and what it is to be divided by: its examples, or its positions."""
        try:
            if self.problem.loss is functional.cross_entropy:
                return float(functional.cross_entropy(outputs, targets, reduction="sum")), count
            if self.problem.loss is sequence_cross_entropy:
                scores = outputs.movedim(class_dimension(outputs, targets), 1)
                total = functional.cross_entropy(scores, targets, reduction="sum", ignore_index=IGNORED)
                return float(total), float((targets != IGNORED).sum())
        except Exception as error:
            raise explain_loss(error, outputs, targets) from error
        return self._mean_loss(outputs, targets) * count, count


def _each_of(name: str) -> Callable[[Tree, Tree], torch.Tensor]:
    each = BUILT_IN[name].each
    assert each is not None
    return each


# Each example's cross-entropy is what perplexity is made of, and its squared error what rmse is.
BUILT_IN_LOSSES: Mapping[Any, Callable[[Tree, Tree], torch.Tensor]] = {
    functional.cross_entropy: _each_of("perplexity"),
    sequence_cross_entropy: _each_of("perplexity"),
    mean_squared_error: _each_of("mse"),
}


def has_each(metric: NamedMetric) -> bool:
    """Return whether a metric has a value for every example."""
    return metric.each is not None or metric.name == LOSS


def _as_float32(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.to(CPU, torch.float32) if leaf.is_floating_point() else leaf.to(CPU)


def _join_outputs(pieces: Sequence[Any]) -> Any:
    try:
        return join_trees(pieces)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BadInput(DIFFERENT_OUTPUTS) from error


def join_scores(pieces: Sequence[Scores]) -> Scores:
    """Return the scores of several ranges of examples as one."""
    outputs = [piece.outputs for piece in pieces if piece.outputs is not None]
    targets = [piece.targets for piece in pieces if piece.targets is not None]
    losses = [loss for piece in pieces for loss in piece.losses]
    values = torch.cat([p.values for p in pieces], dim=1)
    return Scores(
        values, losses, _join_outputs(outputs) if outputs else None, _join_outputs(targets) if targets else None
    )


class Evaluator:
    """Turns scores into metrics: for all, for slow devices and for the worst device.

    A device's own figure is that of the examples it held out, if devices did; else, where there are classes, that of
    the classes it trains on, in its own shares.
    """

    def __init__(
        self,
        metrics: Sequence[NamedMetric],
        examples: Examples | Sequence[int],
        slow: Sequence[int],
        *,
        held: torch.Tensor | None = None,
        ranges: Ranges | None = None,
    ) -> None:
        """`held[i, c]` is how many examples of class c device i trains on; None: there are no classes, or real
        devices do not tell. `slow` are the devices that are always slow; of real devices, those that are now. With
        scores of devices in place of examples, `examples` are the devices.
        """
        self._metrics, self._count, self._slow, self._ranges = list(metrics), len(examples), slow, ranges
        self._classes = None
        if held is not None and not ranges and isinstance(examples, Examples):
            self._classes = _ClassShares(examples.targets(), held, self._slow)
        self._examples = examples

    @cached_property
    def _targets(self) -> Tree:
        assert isinstance(self._examples, Examples)
        return self._examples.targets()

    @property
    def names(self) -> list[str]:
        """The names of all that `evaluate` returns."""
        names = list(dict.fromkeys([*(m.name for m in self._metrics), LOSS]))
        return [*names, *(f"{m.name}_{whose}" for m in self._metrics for whose in ("slow", "worst"))]

    def evaluate(self, scores: Scores) -> Metrics:
        """Return the metrics of the weights that were scored."""
        weight = sum(count for _, count in scores.losses)
        loss = sum(total for total, _ in scores.losses) / weight if weight else math.nan
        values: Metrics = dict.fromkeys(self.names)
        values[LOSS] = loss
        row = 0
        for metric in self._metrics:
            each = None
            if has_each(metric):
                each = scores.values[row].double()
                row += 1
            if metric.name != LOSS:
                values[metric.name] = self._measure(metric, each, scores, [(0, self._count)])
            slow, worst = self._by_device(metric, each, scores)
            values[f"{metric.name}_slow"], values[f"{metric.name}_worst"] = slow, worst
        return values

    def _measure(self, metric: NamedMetric, each: torch.Tensor | None, scores: Scores, ranges: Ranges) -> float | None:
        """Return a metric over some ranges of the test examples; None if they are empty."""
        ranges = [(start, end) for start, end in ranges if end > start]
        if not ranges:
            return None
        if each is not None:
            both = torch.cat([each[start:end] for start, end in ranges]).sum(0)
            total, weight = float(both[0]), float(both[1])
            return metric.finish(total / weight) if weight else None
        if metric.whole is None or scores.outputs is None:
            return None
        rows = torch.cat([torch.arange(start, end, device=CPU) for start, end in ranges])
        known = self._targets if scores.targets is None else scores.targets
        chosen, targets = (
            map_tree(lambda leaf: leaf.to(CPU).index_select(0, rows), tree) for tree in (scores.outputs, known)
        )
        return metric.whole(chosen, targets)

    def _try(self, metric: NamedMetric, each: torch.Tensor | None, scores: Scores, ranges: Ranges) -> float | None:
        """Return a metric of some devices; None if it is no number: many metrics need more examples than a few."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                value = self._measure(metric, each, scores, ranges)
            except BadInput:
                return None
        return value if value is not None and math.isfinite(value) else None

    def _by_device(
        self, metric: NamedMetric, each: torch.Tensor | None, scores: Scores
    ) -> tuple[float | None, float | None]:
        """Return a metric for the slow devices together, and for the device that has the worst."""
        if self._ranges is not None and (each is not None or scores.outputs is not None):
            slow = self._try(metric, each, scores, [self._ranges[device] for device in self._slow])
            own = (self._try(metric, each, scores, [device]) for device in self._ranges)
            known = [value for value in own if value is not None]
            if not known:
                return slow, None
            return slow, min(known) if metric.higher_is_better else max(known)
        if self._classes is None or each is None:
            return None, None
        return self._classes.measure(metric, each)


def make_device_evaluator(metrics: Sequence[NamedMetric], target: str, devices: int, slow: Sequence[int]) -> Evaluator:
    """Return what makes metrics of scores in which each device stands for an example."""
    if any(metric.name == target and not has_each(metric) for metric in metrics):
        raise BadInput(
            f"evaluate_on: got 'devices', and {target!r} needs all outputs at once, which do not leave a device; "
            "it takes a metric with a value for each example"
        )
    return Evaluator(metrics, range(devices), slow, ranges=[(device, device + 1) for device in range(devices)])


class _ClassShares:
    """Which classes each device holds, and in which shares."""

    def __init__(self, labels: torch.Tensor, held: torch.Tensor, slow: Sequence[int]) -> None:
        self._labels = labels.to(CPU)
        if (wrong := find_wrong_label(self._labels, held.shape[1])) is not None:
            raise BadInput(
                f"data(): the test examples have a label of {wrong}; it takes labels from 0 to {held.shape[1] - 1}"
            )
        held = held.double()
        held = held * (torch.bincount(self._labels, minlength=held.shape[1]) > 0)  # classes that can be tested
        self._shares = held / held.sum(1, keepdim=True)  # of each class in each device's data
        together = held[list(slow)].sum(0)
        self._slow = together / together.sum() if slow and float(together.sum()) > 0 else None

    def measure(self, metric: NamedMetric, each: torch.Tensor) -> tuple[float | None, float | None]:
        classes = self._shares.shape[1]
        sums, counts = (
            torch.bincount(self._labels, weights=each[:, column], minlength=classes).float() for column in (0, 1)
        )
        by_class = (sums / counts.clamp(min=1)).double()
        slow = None if self._slow is None else metric.finish(float(self._slow @ by_class))
        devices = (self._shares @ by_class)[self._shares.isfinite().all(1)]
        if len(devices) == 0:
            return slow, None
        return slow, metric.finish(float(devices.min() if metric.higher_is_better else devices.max()))
