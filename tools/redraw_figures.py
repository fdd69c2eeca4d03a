"""Draw the figures in results/ again, those whose data is there too: `python tools/redraw_figures.py [FILE.csv ...]`.

Figures of learning curves (paper/accuracy, paper/loss, paper/time, policies, tuned, schedules) need the runs, which are
not in the repository: the commands in results/README.md make them.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from fedlga.paper.redraw import FROM_ROWS, redraw

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))


def main() -> None:
    """Draw all figures, or those of some files."""
    results = ROOT / "results"
    files = [Path(name) for name in sys.argv[1:]] or [
        *(file for item in FROM_ROWS for file in sorted((results / "paper" / item).glob("*.csv"))),
        results / "growth" / "growth.csv",
        results / "simulators" / "simulators.csv",
    ]
    for file in files:
        if file.stem in ("growth", "simulators"):
            module: Any = __import__(file.stem)
            module.draw(read_numbers(file), file.parent)
        else:
            redraw(file)
        print(f"drawn: {file.parent.name}/{file.stem}")


def read_numbers(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV file, numbers as numbers."""
    with file.open(newline="", encoding="utf-8") as lines:
        return [{name: _parse(text) for name, text in row.items()} for row in csv.DictReader(lines)]


def _parse(text: str) -> Any:
    try:
        number = float(text)
    except ValueError:
        return text or None
    return int(number) if number.is_integer() and "." not in text else number


if __name__ == "__main__":
    main()
