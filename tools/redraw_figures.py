"""Draw the figures in results/ again, from the files beside them: `python tools/redraw_figures.py [FILE.csv ...]`.

Learning curves are drawn from curves.csv, which the command that makes the runs writes. A figure of learning curves
without it is from before there was such a file.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any

from fedlga.experiments.presets import preset
from fedlga.paper.redraw import list_drawable, redraw
from fedlga.report.learning_curves import draw_metric_over_time
from fedlga.report.seed_curves import CURVES, read_curves

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))


def main() -> None:
    """Draw all figures, or those of some files."""
    for file in [Path(name) for name in sys.argv[1:]] or list_files(ROOT / "results"):
        draw(file.resolve())
        print(f"drawn: {file.parent.name}/{file.stem}")


def list_files(results: Path) -> list[Path]:
    """Return the files from which figures can be drawn."""
    return [
        *list_drawable(results / "paper"),
        *sorted(results.glob(f"policies/{CURVES}")),
        *sorted(results.glob(f"tuned/*/{CURVES}")),
        *sorted(results.glob(f"schedules/*/{CURVES}")),
        results / "growth" / "growth.csv",
        results / "simulators" / "simulators.csv",
        results / "theory" / "study.csv",
    ]


def draw(file: Path) -> None:
    """Draw the figure of one file, beside it."""
    if file.name == CURVES:
        draw_learning(file)
    elif file.stem in ("growth", "simulators"):
        module: Any = __import__(file.stem)
        module.draw(read_numbers(file), file.parent)
    elif (file.parent.name, file.name) == ("theory", "study.csv"):
        import theory

        theory.draw(theory.read_study(file), file.parent)
    else:
        redraw(file)


def draw_learning(file: Path) -> None:
    """Draw learning curves as the study does that wrote them: its folder says which it is."""
    import schedules
    import tuned

    folder, study = file.parent, file.parent.parent
    if folder.name == "policies":
        e = preset("paper")
        drawings = [folder / "comparison.png", folder / "comparison.svg"]
        draw_metric_over_time(read_curves(file), e.target_metric, e.target, drawings, e.subject)
    elif study.name == "tuned" and folder.name == "fleet":
        tuned.draw_fleet(study)
    elif study.name == "schedules":
        schedules.draw(folder.name, study)
    else:
        sys.exit(f"{file}: no figure is known that is drawn from it")


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
