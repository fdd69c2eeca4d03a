"""fedlga audit: its table on the terminal and as CSV."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_audit_prints_and_writes_its_table(fedlga):
    code, out, err = fedlga("audit", "--preset", "digits", "--rounds", 12, "--out", "audit.csv")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if line.startswith(("batch, ", "epoch, "))]
    assert len([row for row in rows if ":" not in row]) == 5
    assert max(map(len, rows)) <= 80
    lines = Path("audit.csv").read_text().splitlines()
    scales = [
        f"{scale}{kind}" for scale in ("feedback", "growth", "linear", "printed") for kind in ("", "_mean", "_sum")
    ]
    assert lines[0].split(",") == ["regime", "rounds", *scales, "best", "stragglers"]
    assert len(lines) == 6
    code, _, err = fedlga("audit", "--preset", "digits", "--rounds", 2, "--out", "audit.csv/x/audit.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "--out: cannot write to 'audit.csv/x' (Not a directory)" in err
    code, _, err = fedlga("audit", "--preset", "digits", "--only", "batch, 0.2")
    assert (code, err.count("\n")) == (2, 1)
