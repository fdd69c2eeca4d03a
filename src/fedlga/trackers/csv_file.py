"""A CSV file in the run folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.settings import BadInput, setting
from fedlga.core.tracker import TrackedRun, Tracker


@final
@dataclass
class CsvFile(Tracker):
    """A table in the run folder, a row a round: for spreadsheets."""

    file: str = setting("tracked.csv", "name of the file in the run folder; it ends with .csv")

    def check(self) -> None:  # noqa: D102
        # It is written anew each round: no file of the run itself, and none elsewhere, may have its name.
        if Path(self.file).name != self.file or not self.file.endswith(".csv"):
            raise BadInput(f"csv.file: got {self.file!r}; it takes a name that ends with .csv, without a folder")

    def start(self, run: TrackedRun) -> None:  # noqa: D102
        self._path = run.folder / self.file
        self._rows: list[dict[str, Any]] = []
        if run.round and self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as lines:
                self._rows = [dict(row) for row in csv.DictReader(lines) if int(row["round"]) <= run.round]

    def log(self, round: int, values: Mapping[str, float]) -> None:  # noqa: D102
        self._rows.append({"round": round, **values})
        names = dict.fromkeys(name for row in self._rows for name in row)  # a metric may come in a later round
        write_atomically(self._path, format_csv([{name: row.get(name) for name in names} for row in self._rows]))

    def end(self, summary: Mapping[str, Any]) -> None:  # noqa: D102
        pass  # every round is in the file already
