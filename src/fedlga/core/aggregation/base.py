"""What an aggregation rule is: it computes the weighted sums that a method asks for.

The same rule computes every sum of a round: of updates, and of what Scaffold and FedDyn accumulate. So a robust rule
protects the method's memory as well as the weights.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from fedlga.core.guard import true_length
from fedlga.core.method import WeightedVector
from fedlga.core.settings import BadInput, setting

if TYPE_CHECKING:
    from fedlga.core.types import Vector


OUTLIER_BOUND = 20.0  # docs/reliability.md has the longest honest updates of our runs


@dataclass(frozen=True)
class AggregationRule(ABC):
    """A frozen dataclass of settings, without state. A subclass implements `sum`."""

    length_bound: float = setting(
        0.0, "an update longer than this times the round's median length is shortened to it; 0: no bound", least=0
    )

    outlier_bound: float = setting(
        OUTLIER_BOUND, "an update longer than this times the usual length is left out; 0: none is", least=0
    )
    most_refused: float = setting(
        1.0, "the run stops if more than this share of a round's updates was left out as wrong", least=0, most=1
    )
    quarantine: int = setting(
        10, "rounds for which a device rests whose updates were refused again and again; 0: none rests", least=0
    )
    quarantine_after: int = setting(
        3, "refused updates after which a device rests; one that counts makes up for one", least=1
    )

    streams: ClassVar[bool] = False  # the sum can be built one vector at a time, as updates arrive
    least_updates: ClassVar[int] = 1  # with fewer in a round the rule protects against nothing

    @property
    def needs_all(self) -> bool:
        """Whether all of a round's updates must be there before the first one can be used."""
        return not self.streams or self.length_bound > 0

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings; BadInput if they do not fit the rest of the experiment."""
        if experiment["cohort"] < cls.least_updates:
            raise BadInput(
                f"aggregation: got {experiment['aggregation']!r} with cohort {experiment['cohort']}; "
                f"it takes a cohort of at least {cls.least_updates}"
            )
        return dict(settings)

    @abstractmethod
    def sum(self, vectors: Sequence[WeightedVector], start: Vector | None = None) -> Vector:
        """Return `start` (zero if None) plus the sum of coefficient * vector, in a new tensor.

        A robust rule returns `start` plus the total weight times its estimate of the typical coefficient/weight *
        vector. There is at least one vector.
        """


def bound_lengths(vectors: Sequence[WeightedVector], bound: float) -> tuple[list[WeightedVector], list[float]]:
    """Shorten what is longer than `bound` times the median length; also return the factor for each vector.

    Lengths are those with which the vectors enter the sum: a completed update counts as long as it was made. A vector
    that is not finite counts as zero.
    """
    lengths = [abs(v.coefficient / v.weight) * true_length(v.vector) for v in vectors]
    limit = bound * statistics.median(lengths)
    factors = [1.0 if length <= limit else limit / length for length in lengths]
    return [_shorten(v, factor) for v, factor in zip(vectors, factors, strict=True)], factors


def _shorten(v: WeightedVector, factor: float) -> WeightedVector:
    if factor == 1:
        return v
    vector = torch.zeros_like(v.vector) if factor == 0 else v.vector
    return replace(v, vector=vector, coefficient=v.coefficient * factor)
