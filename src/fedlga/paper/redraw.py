"""Drawing an item's figure again, and writing its page again, from its CSV files, without its runs.

SETTING.csv holds a row for each run. An item with learning curves has them in SETTING-curves.csv beside it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlga.core.settings import BadInput
from fedlga.paper.items import ITEMS
from fedlga.paper.page import make_page
from fedlga.paper.runs import ItemRuns
from fedlga.paper.settings import Setting, make_setting
from fedlga.report.seed_curves import CURVES


@dataclass(frozen=True)
class RowsOfRuns(ItemRuns):
    """An item whose runs are rows that were read from a file."""

    read: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A row for each run."""
        return list(self.read)


def read_rows(file: Path) -> RowsOfRuns:
    """Return the item whose runs OUT/ITEM/SETTING.csv has."""
    item = ITEMS.get(file.parent.name)
    if item is None:
        raise BadInput(f"{str(file)!r}: there is no item {file.parent.name!r}")
    with file.open(newline="", encoding="utf-8") as lines:
        rows = tuple(_parse_row(row) for row in csv.DictReader(lines))
    seeds, methods = sorted({row["seed"] for row in rows}), tuple({row["method"] for row in rows})
    return RowsOfRuns(item, find_setting(file.stem), seeds, file.parent.parent, methods, rows)


def remake_page(file: Path) -> str:
    """Return the page beside OUT/ITEM/SETTING.csv as it would be written now: with the present claims and tests."""
    *_, origin = file.with_suffix(".md").read_text(encoding="utf-8").rstrip("\n").split("\n")
    return make_page(read_rows(file), origin)


def redraw(file: Path) -> list[Path]:
    """Draw the figure beside OUT/ITEM/SETTING.csv again; return the files that were written."""
    runs = read_rows(file)
    figures = [file.with_suffix(f".{ending}") for ending in ("svg", "png", "pdf")]
    runs.item.draw(runs, figures)
    return figures


def list_rows(folder: Path) -> list[Path]:
    """Return the files OUT/ITEM/SETTING.csv."""
    return [file for item in ITEMS for file in sorted((folder / item).glob("*.csv")) if not _holds_curves(file)]


def list_judgeable(folder: Path) -> list[Path]:
    """Return the files OUT/ITEM/SETTING.csv that have all that the item's claims need: earlier versions wrote less."""
    return [file for file in list_rows(folder) if set(ITEMS[file.parent.name].clocks) <= _read_columns(file)]


def _read_columns(file: Path) -> set[str]:
    with file.open(newline="", encoding="utf-8") as lines:
        return set(csv.DictReader(lines).fieldnames or [])


def list_drawable(folder: Path) -> list[Path]:
    """Return the files OUT/ITEM/SETTING.csv whose figures can be drawn: learning curves need their own file."""
    files = list_rows(folder)
    return [file for file in files if not ITEMS[file.parent.name].curves or _find_curves(file).is_file()]


def _holds_curves(file: Path) -> bool:
    return file.name.endswith(f"-{CURVES}")


def _find_curves(file: Path) -> Path:
    return file.with_name(f"{file.stem}-{CURVES}")


def find_setting(name: str) -> Setting:
    """Return the setting of this name."""
    whole, _, rounds = name.removesuffix("-rounds").rpartition("-")
    if name.endswith("-rounds") and rounds.isdecimal():
        return find_setting(whole).cut(int(rounds))
    for word in ("small", "batches", "quick"):
        if name.endswith(f"-{word}"):
            return make_setting(name.removesuffix(f"-{word}"), **{word: True})
    return make_setting(name)


def _parse_row(row: dict[str, str]) -> dict[str, Any]:
    words = ("point", "method", "stragglers")
    values: dict[str, Any] = {name: float(text) if text else None for name, text in row.items() if name not in words}
    return {**values, **{name: row[name] for name in words}, "seed": int(row["seed"])}
