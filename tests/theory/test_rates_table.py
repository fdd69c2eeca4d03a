"""The paper's table of convergence rates: data in results/, and a link from each method's page."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RATES = list(csv.DictReader((ROOT / "results/theory/convergence-rates.csv").read_text("utf-8").splitlines()))
PAGES = sorted(page.stem for page in (ROOT / "docs" / "methods").glob("*.md"))


def test_the_table_is_the_papers():
    """Table I of the paper: seven rows, in its order."""
    assert [(r["paper"].split()[0], r["rate"]) for r in RATES] == [
        ("Stich", "NE / T + 1 / sqrt(NET)"),
        ("Khaled", "1 / T + 1 / sqrt(NT)"),
        ("Li", "E / T"),
        ("Li", "1 / sqrt(T)"),
        ("Karimireddy", "1 / T + 1 / sqrt(NET)"),
        ("Yang", "1 / T + 1 / sqrt(NET)"),
        ("Li", "1 / T + (1 + rho) sqrt(E) / sqrt(TK)"),
    ]


@pytest.mark.parametrize("page", [p for p in PAGES if p in {r["method"].split()[0].lower() for r in RATES}])
def test_methods_with_a_rate_link_to_it(page: str):
    assert "(../theory.md#the-papers-table-of-rates)" in (ROOT / "docs" / "methods" / f"{page}.md").read_text("utf-8")
    assert "\n## The paper's table of rates\n" in (ROOT / "docs" / "theory.md").read_text("utf-8")


def test_four_methods_have_a_rate():
    assert {r["method"].split()[0].lower() for r in RATES} & set(PAGES) == {"fedavg", "fedlga", "fedprox", "scaffold"}
