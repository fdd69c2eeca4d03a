"""How good some weights are: on the test data, overall and as the devices would find it on data like their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from .data.augment import resized
from .types import Evaluation

if TYPE_CHECKING:
    from .models import FlatModel
    from .types import Vector

EVALUATION_BATCH = 1000
CONVOLVED_BATCH = 100  # what convolutions make of these still fits a cache; of 2000 it takes three times as long

Scores = tuple[torch.Tensor, list[float]]  # which examples were right, and the loss of each batch


@dataclass(frozen=True)
class Exam:
    """The test data, and the model that sits it."""

    model: FlatModel
    images: torch.Tensor
    labels: torch.Tensor
    resize: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def batch(self) -> int:
        """Examples at a time. Work is divided between them: other sums would differ in their last bit."""
        return CONVOLVED_BATCH if self.model.convolves else EVALUATION_BATCH

    @torch.no_grad()
    def scored(self, w: Vector, start: int = 0, end: int | None = None) -> Scores:
        """Which of the examples in [start, end) weights `w` get right, and the summed loss of each batch of them."""
        end = len(self) if end is None else end
        self.model.vector.copy_(w)
        self.model.module.eval()
        right, losses = torch.zeros(end - start, dtype=torch.bool), list[float]()
        for first in range(start, end, self.batch):
            these = slice(first, min(first + self.batch, end))
            scores, labels = self.model.module(resized(self.images[these], self.resize)), self.labels[these]
            right[these.start - start : these.stop - start] = scores.argmax(1) == labels
            losses.append(float(cross_entropy(scores, labels, reduction="sum")))
        self.model.module.train()
        return right, losses


class Evaluator:
    """Evaluates weights, wherever they are scored."""

    def __init__(
        self, score: Callable[[Vector], Scores], labels: torch.Tensor, held: torch.Tensor | None, slow: list[int]
    ) -> None:
        """`held[i, c]` is how many examples of class c device i trains on; `slow` are the devices that always are.

        Of real devices nobody knows what they hold.
        """
        self._score, self._labels = score, labels
        self._whole = held is None
        held = torch.ones(1, int(labels.max()) + 1).double() if held is None else held.double()
        self._shares = held / held.sum(1, keepdim=True)  # of each class in each device's data
        together = held[slow].sum(0)
        self._slow = together / together.sum() if slow else None
        self._tested = torch.bincount(labels, minlength=held.shape[1]).clamp(min=1)

    def __call__(self, w: Vector) -> Evaluation:
        """Evaluate weights `w`."""
        right, losses = self._score(w)
        by_class = torch.bincount(self._labels[right], minlength=len(self._tested)) / self._tested
        return Evaluation(
            accuracy=int(right.sum()) / len(right),
            loss=sum(losses) / len(right),
            accuracy_slow=None if self._slow is None else float(self._slow @ by_class.double()),
            accuracy_worst=None if self._whole else float((self._shares @ by_class.double()).min()),
        )
