"""Every example of a task of one's own: its command, from an empty folder, as a process of its own."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedlga.core.process import one_thread, seed_generators
from fedlga.core.randomness import Stream, torch_seed
from fedlga.learning.task import load_task

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
ROUNDS = {"lora": 20, "next_character": 2}  # in which it learns; 20: all of them, because the file says what it reaches


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
    shutil.copy(example, tmp_path)
    metric, rounds = METRICS[example.stem], ROUNDS.get(example.stem, 6)
    out = run_command(tmp_path, "run", example.name, "--rounds", str(rounds), "--out", "r")
    assert f"measured by {metric}, {'higher' if metric == 'accuracy' else 'lower'} is better" in out
    assert f"best {metric}" in out
    lines = [json.loads(line) for line in (tmp_path / "r" / "rounds.jsonl").read_text().splitlines()]
    values = [line[metric] for line in lines]
    best = max(values) if metric == "accuracy" else min(values)
    assert best != values[0], "it did not learn"
    assert (tmp_path / "r" / "task.py").read_text() == example.read_text()
    if example.stem == "lora":
        check_lora(example, tmp_path / "r", values[-1])


def check_lora(example: Path, folder: Path, accuracy: float) -> None:
    """Compare what lora.py says of itself with the model that it starts from and with the one that it ends with."""
    task = load_task(str(example))
    with one_thread(), seed_generators(torch_seed(0, Stream.WEIGHTS)):
        start = task.call("model")
    weights = dict(start.named_parameters())
    adapters = {name for name, weight in weights.items() if weight.requires_grad}
    assert adapters == {name for name in weights if name.endswith((".down", ".up"))}
    sizes = sum(weights[name].numel() for name in adapters), sum(weight.numel() for weight in weights.values())
    assert f"the adapters are {sizes[0]:,} of its {sizes[1]:,} weights" in task.about
    assert not any(weights[name].any() for name in adapters if name.endswith(".up")), "the adapters add nothing yet"

    def share_right(signals, shapes):
        with torch.no_grad():
            return float((start(signals).argmax(1) == shapes).float().mean())

    module = sys.modules[task.model.__module__]
    laboratory = module.record(np.random.default_rng(2), 1000)  # not those it was trained on
    devices = [torch.cat(column) for column in zip(*task.call("data").values(), strict=True)]
    assert "more than 95 % of\nthem" in task.about
    assert share_right(*laboratory) > 0.95
    assert "less than 60 % of their signals" in task.about
    assert share_right(*devices) < 0.6
    assert "After 20 rounds it is\nmore than 80 %" in task.about
    assert accuracy > 0.8
    end = load_file(folder / "model.safetensors")
    assert end.keys() == weights.keys()
    assert {name for name in weights if not torch.equal(end[name], weights[name])} == adapters
    assert load_file(folder / "checkpoint" / "server.safetensors")["w"].numel() == sizes[0], "what a device gets"


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_goes_to_a_fleet_as_it_is(example, tmp_path):
    """Its copy is imported alone before anything is written. test_superlink.py trains two of them on nodes."""
    shutil.copy(example, tmp_path)
    run_command(tmp_path, "fleet", "init", "my-fleet", "--task", example.name, "--nodes", "1")
    assert (tmp_path / "my-fleet" / "app" / "fleet_app" / "task.py").read_text() == example.read_text()


def test_every_author_of_next_character_has_a_text_of_its_own():
    data = load_task(str(ROOT / "examples" / "own-data" / "next_character.py")).call("data")
    assert len({x.numpy().tobytes() for x, _ in data.values()}) == len(data) == 9
    assert min(len(x) for x, _ in data.values()) > 60


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
