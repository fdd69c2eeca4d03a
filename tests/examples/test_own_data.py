"""Every example of a task of one's own: its command, from an empty folder, as a process of its own."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "own-data").glob("*.py"))
METRICS = {
    "images_in_folders": "accuracy",
    "lora": "accuracy",
    "next_character": "perplexity",
    "regression": "rmse",
    "text_classification": "accuracy",
}
MOST_LINES = 40
# Rounds after which the target metric is better than the first round's, in this many rounds.
ROUNDS = {"lora": 2, "next_character": 2}


def count_code(text: str) -> int:
    """Return the lines of a file that hold code: no blank lines, comments and docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            strings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(bool(line.strip()) and not line.strip().startswith("#") and n not in strings for n, line in lines)


def run_command(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "fedlga", *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


def test_all_examples_are_tried():
    assert [file.stem for file in EXAMPLES] == sorted(METRICS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_short(example):
    assert count_code(example.read_text()) <= MOST_LINES


@pytest.mark.slow(seconds=60)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_runs_from_an_empty_folder_and_learns(example, tmp_path):
    for file in EXAMPLES:  # lora.py imports another one
        shutil.copy(file, tmp_path)
    metric, rounds = METRICS[example.stem], ROUNDS.get(example.stem, 6)
    out = run_command(tmp_path, "run", example.name, "--rounds", str(rounds), "--out", "r")
    assert f"measured by {metric}, {'higher' if metric == 'accuracy' else 'lower'} is better" in out
    assert f"best {metric}" in out
    lines = [json.loads(line) for line in (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()]
    values = [line[metric] for line in lines]
    best = max(values) if metric == "accuracy" else min(values)
    assert best != values[0], "it did not learn"
    assert (tmp_path / "r" / "task.py").read_text() == example.read_text()


def test_the_first_lines_of_the_readme_are_a_whole_task(tmp_path):
    """The first block of Python in README.md, with a table of random numbers where it reads one."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    assert count_code(code) < 15
    (tmp_path / "mine.py").write_text(code)
    names = ["hour", "day", "workday", "temperature", "rain", "wind", "rentals"]
    rows = [",".join(str((i * (k + 3)) % 17 / 17) for k in range(7)) for i in range(100)]
    (tmp_path / "rentals.csv").write_text("\n".join([",".join(names), *rows]))
    out = run_command(tmp_path, "run", "mine.py", "--rounds", "1", "--backend", "serial")
    assert "10 of 10 devices a round, 50% slow" in out
    assert "measured by rmse, lower is better" in out


def test_the_first_example_of_the_guide_is_a_whole_task(tmp_path):
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "own-data.md").read_text(), re.DOTALL)[0]
    assert count_code(code) < 15
    (tmp_path / "mine.py").write_text(code)
    out = run_command(tmp_path, "run", "mine.py", "--rounds", "2")
    assert "best rmse" in out
