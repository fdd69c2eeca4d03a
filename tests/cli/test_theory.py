"""fedlga theory: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedlga.cli.theory import _round_down

DIGITS = ("--preset", "digits", "--set", "steps_per_epoch=1", "--set", "cohort=4")


def test_rates_that_are_small_enough_and_what_a_run_did(fedlga):
    words = (*DIGITS, "--rounds", 6, "--set", "lr=0.0005", "--set", "evaluate_every=2")
    code, _, _ = fedlga("run", *words, "--record", "gradient", "--out", "recorded")
    assert code == 0
    code, out, err = fedlga("theory", "--run", "recorded")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(len(line) for line in lines) <= 80, max(lines, key=len)
    text = " ".join(out.split())
    assert "The rates are small enough for Theorem 2. It promises that in 6 rounds" in text
    assert "That is nothing: it starts at" in text
    assert re.search(r"The run's squared gradient fell to [\d.]+, in round [246]\.", text)
    assert "Theorem 2 sees N = 20, K = 4, E = 5, T = 6" in text
    assert "what the run did, 6 rounds (3 recorded)" in text
    assert out.count("  yes  ") == 3
    assert "devices are drawn without replacement; Theorem 2 draws with" in text
    assert "These are too large in 6 rounds: the corollary needs" in text


def test_a_run_whose_gradient_never_fell_is_not_said_to_have_fallen(fedlga):
    # Two devices, and steps so long that the gradient after them is longer: 7.0, from 1.5.
    words = ("--preset", "digits", "--set", "steps_per_epoch=1", "--set", "cohort=2", "--rounds", 1, "--set", "lr=0.3")
    assert fedlga("run", *words, "--record", "gradient", "--out", "grown")[0] == 0
    code, out, _ = fedlga("theory", "--run", "grown", "--out", "grown.json")
    assert code == 0
    values = json.loads(Path("grown.json").read_text())
    assert values["run"]["smallest"] > values["estimates"]["squared_gradient"]["value"]
    text = " ".join(out.split())
    assert re.search(r"The run's squared gradient did not fall: its smallest was [\d.]+, in round 1\.", text)
    assert "fell to" not in text


def test_rates_that_are_too_large(fedlga):
    words = (*DIGITS, "--set", "lr=0.5", "--set", "sampling=with-replacement")
    code, out, _ = fedlga("theory", *words, "--out", "theory.json")
    assert code == 0
    values = json.loads(Path("theory.json").read_text())
    assert values["applies"] is False
    assert values["bounds"]["these"]["total"] is None  # there is none
    assert values["bounds"]["best"]["total"] > 0
    assert [c["holds"] for c in values["conditions"]] == [False, False, False]
    assert values["run"] is None
    text = " ".join(out.split())
    assert "The rates are too large for Theorem 2, which promises nothing then: 3 of 3 conditions fail." in text
    assert out.count("  NO   ") == 3
    assert "Largest global rate with eta_l = 0.5: none" in text
    assert max(len(line) for line in out.splitlines()) <= 80
    # What is printed as the largest rate satisfies the conditions: it is rounded down.
    needed = re.search(r"it needs eta_l = ([\d.e-]+) or less", text)
    assert needed is not None
    assert 0.99 * values["largest"]["eta_l"] < float(needed[1]) <= values["largest"]["eta_l"]


def test_what_the_theorems_are_not_about(fedlga):
    words = (*DIGITS, "--method", "fedavg", "--stragglers", "keep", "--set", "local_optimizer=adamw")
    code, out, _ = fedlga("theory", *words, "--set", "lr=0.0005", "--out", "theory.json")
    assert code == 0
    text = " ".join(out.split())
    assert "The theorems are not about this algorithm: see the end. With plain averaging: The rates are" in text
    assert "devices train with momentum, AdamW or clipped gradients, and not with plain SGD" in text
    assert "unfinished work is averaged as it came" in text
    assert max(len(line) for line in out.splitlines()) <= 80, max(out.splitlines(), key=len)
    assert json.loads(Path("theory.json").read_text())["covered"] is False


@pytest.mark.parametrize("value", [0.00043962, 1.0, 0.1, 123456.0, 9.9999e-5, 7.0])
def test_upper_limits_are_rounded_down(value):
    assert 0.99 * value < float(_round_down(value)) <= value


def test_wrong_calls(fedlga, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = fedlga("theory", *DIGITS, "--out", tmp_path / "file" / "theory.json")
    assert (code, out) == (2, "")
    assert err.startswith("fedlga: --out: cannot write to")
    code, out, err = fedlga("theory", "--run", tmp_path)
    assert (code, out) == (2, "")
    assert err.endswith("holds no run; it takes the folder of one\n")
    code, out, err = fedlga("theory", "--run", tmp_path, "--preset", "digits")
    assert (code, out) == (2, "")
    assert "the folder holds the experiment" in err
    fedlga("run", *DIGITS, "--rounds", 1, "--out", "plain")
    code, out, err = fedlga("theory", "--run", "plain")
    assert (code, out) == (2, "")
    assert err == "fedlga: --run: 'plain' did not record the gradient; run it with --record gradient\n"
