"""What an item is: one of the paper's figures or tables, or one of ours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedlga.paper.claims import Claim
from fedlga.paper.settings import Setting

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns

SIX = ("fedlga", "fedavg", "fedprox", "fednova", "scaffold", "feddyn")
BASE = "base"  # the point that every item starts from: the paper's defaults


@dataclass(frozen=True)
class Point:
    """One setting of what an item varies."""

    name: str  # of its folder
    value: float | str  # on the axis
    changes: Mapping[str, Any]


BASE_POINT = Point(BASE, "", {})


@dataclass(frozen=True)
class Item(ABC):
    """One figure or table. A subclass says what is run, the table's columns, what is claimed and how it is drawn."""

    curves: ClassVar[Sequence[str]] = ()  # what its learning curves show; empty: it has none
    clocks: ClassVar[Sequence[str]] = ()  # what its claims measure whole runs by

    name: str
    title: str
    says: str  # the paper's claim, in our words; for one of ours, the question
    methods: Sequence[str] = SIX
    policies: Sequence[str] = ()  # empty: each method's own
    ours: bool = False  # it is not in the paper
    says_of: Mapping[str, str] = field(default_factory=dict[str, str])  # what the paper says of one data set alone
    claimed_of: Sequence[str] = ()  # the data sets that the paper claims it of; empty: all

    def points(self, setting: Setting) -> list[Point]:
        """Return what is varied; the paper's default is always the point BASE, whose runs all items share."""
        return [BASE_POINT]

    def quote(self, setting: Setting) -> str:
        """Return what the paper claims, of this data set."""
        return self.says_of.get(setting.base.dataset, self.says)

    def is_claimed(self, setting: Setting) -> bool:
        """Return whether the paper claims it of this data set; or whether it is one of ours."""
        return not self.claimed_of or setting.base.dataset in self.claimed_of

    def label(self, point: Point) -> dict[str, str]:
        """Return the columns of the table that say which point a row is of."""
        return {}

    @abstractmethod
    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:
        """Return the numbers of one row of the table."""

    @abstractmethod
    def claims(self, runs: ItemRuns) -> list[Claim]:
        """Return the item's claim, divided into differences that a paired test can show."""

    @abstractmethod
    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:
        """Draw the figure into each of the files."""
