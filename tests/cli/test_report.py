"""fedlga report: where the page goes, and one line for a wrong call."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import FAST

pytestmark = pytest.mark.slow


def test_the_page_is_written_beside_the_run_or_elsewhere(fedlga):
    fedlga("run", *FAST, "--rounds", 1, "--out", "r")
    code, out, err = fedlga("report", "r")
    assert (code, err) == (0, "")
    assert out.startswith("written: r/report.html (0.")
    assert out.endswith(" MB), 1 run\n")
    assert fedlga("report", "r", "--out", "new/page.html")[0] == 0
    assert Path("new/page.html").read_text() == Path("r/report.html").read_text()
    code, _, err = fedlga("report", "r", "--out", "new")
    assert (code, err) == (2, "fedlga: --out: 'new' is a folder; it takes a file\n")
    code, _, err = fedlga("report", "r", "--out", "r/report.html/x")
    assert (code, err.count("\n")) == (2, 1)
    assert "--out: cannot write to 'r/report.html' (File exists)" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere"], "DIR: 'nowhere' is no folder"),
        (["report", "."], "DIR: '.' holds no run with a finished round"),
    ],
)
def test_a_wrong_call_costs_one_line(fedlga, tmp_path, words, message):
    code, _, err = fedlga(*words)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
