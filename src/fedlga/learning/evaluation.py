"""How good some weights are on the test data: overall, and as the devices would see it on data like their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from fedlga.core.backend import Scores
from fedlga.core.types import Evaluation
from fedlga.learning.augment import resize_images

if TYPE_CHECKING:
    from fedlga.core.types import Vector
    from fedlga.learning.models import FlatModel

EVALUATION_BATCH = 1000
CONVOLUTION_BATCH = 100  # what convolutions make of these still fits the cache; with 2000 it takes three times as long


@dataclass(frozen=True)
class TestSet:
    """The test data, and the model that is tested on it."""

    __test__ = False  # not a test of pytest's

    model: FlatModel
    images: torch.Tensor
    labels: torch.Tensor
    resize: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def batch(self) -> int:
        """Examples at a time. Work is divided between batches: other sums would differ in their last bit."""
        return CONVOLUTION_BATCH if self.model.convolves else EVALUATION_BATCH

    @torch.no_grad()
    def score(self, w: Vector, start: int = 0, end: int | None = None) -> Scores:
        """Return which of the examples in [start, end) weights `w` get right, and the summed loss of each batch."""
        end = len(self) if end is None else end
        self.model.vector.copy_(w)
        self.model.module.eval()
        right, losses = torch.zeros(end - start, dtype=torch.bool), list[float]()
        for first in range(start, end, self.batch):
            these = slice(first, min(first + self.batch, end))
            outputs, labels = self.model.module(resize_images(self.images[these], self.resize)), self.labels[these]
            right[these.start - start : these.stop - start] = outputs.argmax(1) == labels
            losses.append(float(cross_entropy(outputs, labels, reduction="sum")))
        self.model.module.train()
        return Scores(right, losses)


class Evaluator:
    """Turns scores into an evaluation: what they mean for all, for slow devices and for the worst device."""

    def __init__(self, labels: torch.Tensor, held: torch.Tensor | None, slow: list[int]) -> None:
        """`held[i, c]` is how many examples of class c device i trains on; None: real devices do not tell.

        `slow` are the devices that are always slow.
        """
        self._labels = labels
        self._knows_devices = held is not None
        held = torch.ones(1, int(labels.max()) + 1).double() if held is None else held.double()
        self._shares = held / held.sum(1, keepdim=True)  # of each class in each device's data
        together = held[slow].sum(0)
        self._slow = together / together.sum() if slow else None
        self._tested = torch.bincount(labels, minlength=held.shape[1]).clamp(min=1)

    def evaluate(self, scores: Scores) -> Evaluation:
        """Return the evaluation of the weights that were scored."""
        right = scores.right
        by_class = torch.bincount(self._labels[right], minlength=len(self._tested)) / self._tested
        return Evaluation(
            accuracy=int(right.sum()) / len(right),
            loss=sum(scores.losses) / len(right),
            accuracy_slow=None if self._slow is None else float(self._slow @ by_class.double()),
            accuracy_worst=float((self._shares @ by_class.double()).min()) if self._knows_devices else None,
        )
