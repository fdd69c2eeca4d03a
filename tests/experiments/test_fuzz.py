"""No damaged file and no strange argument ends in an exception that nobody catches: see tools/fuzz.py."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

ROOT = Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("fuzz", ROOT / "tools" / "fuzz.py")
assert _spec is not None
assert _spec.loader is not None
fuzz = importlib.util.module_from_spec(_spec)
sys.modules["fuzz"] = fuzz  # dataclasses look their module up
_spec.loader.exec_module(fuzz)

INPUTS = 30  # of each reader, besides its corners; fewer of those that take long


@pytest.mark.parametrize("make", fuzz.READERS, ids=lambda make: make.__name__)
def test_every_damaged_input_is_read_or_refused_in_one_line(make):
    reader = make()
    reader = replace(reader, corners=reader.corners[:: reader.cost])
    count = INPUTS // reader.cost
    result = fuzz.run_reader(reader, 0, count, math.inf, timed=False)
    uncaught = [f"{words} ({where}): {fuzz.show(given)}" for where, (given, words) in result.uncaught.items()]
    assert not uncaught, "\n".join(uncaught)
    assert result.tried == len(reader.corners) + count


def test_a_reader_that_raises_anything_else_is_noticed():
    def fail(text, folder):
        raise KeyError(text)

    result = fuzz.run_reader(fuzz.Reader("x", lambda m: m.text("abc"), fail), 0, 3, math.inf, timed=False)
    assert result.mistakes == 3


def test_a_refusal_of_several_lines_is_noticed():
    class Refusal(fuzz.BadInput):
        def __str__(self):
            return "a\nb"

    def refuse(text, folder):
        raise Refusal

    result = fuzz.run_reader(fuzz.Reader("x", lambda m: m.text("abc"), refuse), 0, 3, math.inf, timed=False)
    assert result.mistakes == 3


def test_inputs_depend_on_the_seed_alone():
    def collect(seed):
        texts = []
        reader = fuzz.Reader("x", lambda m: m.toml("a = 1\nb = [1, 2]"), lambda text, folder: texts.append(text))
        fuzz.run_reader(reader, seed, 20, math.inf, timed=False)
        return texts

    assert collect(1) == collect(1) != collect(2)
