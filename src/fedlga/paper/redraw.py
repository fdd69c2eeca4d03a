"""Drawing an item's figure again from its CSV file, without its runs.

The CSV holds a row for each run, not its rounds: figures of learning curves need the runs themselves.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlga.core.settings import BadInput
from fedlga.paper.items import ITEMS
from fedlga.paper.runs import ItemRuns
from fedlga.paper.settings import Setting, make_setting

FROM_ROWS = ("best", "runtime", "tau-max", "devices", "cohort", "epochs", "rho", "audit")  # items without curves


@dataclass(frozen=True)
class RowsOfRuns(ItemRuns):
    """An item whose runs are rows that were read from a file."""

    read: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A row for each run."""
        return list(self.read)


def redraw(file: Path) -> list[Path]:
    """Draw the figure beside OUT/ITEM/SETTING.csv again; return the files that were written."""
    item, setting = ITEMS.get(file.parent.name), _find_setting(file.stem)
    if item is None or item.name not in FROM_ROWS:
        raise BadInput(f"{str(file)!r}: figures of {file.parent.name} are not drawn from rows of runs")
    with file.open(newline="", encoding="utf-8") as lines:
        rows = tuple(_parse_row(row) for row in csv.DictReader(lines))
    seeds = sorted({row["seed"] for row in rows})
    runs = RowsOfRuns(item, setting, seeds, file.parent.parent, rows)
    figures = [file.with_suffix(f".{ending}") for ending in ("svg", "png", "pdf")]
    item.draw(runs, figures)
    return figures


def _find_setting(name: str) -> Setting:
    for word in ("small", "quick"):
        if name.endswith(f"-{word}"):
            return make_setting(name.removesuffix(f"-{word}"), **{word: True})
    return make_setting(name)


def _parse_row(row: dict[str, str]) -> dict[str, Any]:
    words = ("point", "method", "stragglers")
    values: dict[str, Any] = {name: float(text) if text else None for name, text in row.items() if name not in words}
    return {**values, **{name: row[name] for name in words}, "seed": int(row["seed"])}
