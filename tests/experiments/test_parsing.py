"""Settings and seeds of the command line: what is taken, and one clear line for what is not."""

from __future__ import annotations

import pytest

from fedlga.core.settings import BadInput
from fedlga.experiments.parsing import parse_seeds, parse_setting


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("rho=0.9", ("rho", 0.9)),
        ("dataset=cifar-10", ("dataset", "cifar-10")),
        ("normalise=false", ("normalise", False)),
        ("speeds=[1, 2.5]", ("speeds", [1, 2.5])),
        ('trace="a b.csv"', ("trace", "a b.csv")),
        ("lr = 1e-3", ("lr", 0.001)),
    ],
)
def test_set_takes_toml_values_and_plain_texts(text, pair):
    assert parse_setting(text) == pair


@pytest.mark.parametrize("text", ["rho", "=3", ""])
def test_set_takes_nothing_else(text):
    with pytest.raises(BadInput, match="it takes key=value"):
        parse_setting(text)


def test_seeds():
    assert parse_seeds("0-4") == [0, 1, 2, 3, 4]
    assert parse_seeds("7, 1-2") == [7, 1, 2]
    for wrong in ("", "a", "4-", "1,1", "5-3", "-1"):
        with pytest.raises(BadInput, match="--seeds"):
            parse_seeds(wrong)
