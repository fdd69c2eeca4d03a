"""fedlga data: list, fetch, show."""

from __future__ import annotations

from pathlib import Path


def test_data_commands(fedlga):
    code, out, _ = fedlga("data", "list")
    assert code == 0
    assert "digits" in out
    assert "not fetched" in out
    code, out, _ = fedlga("data", "show", "--preset", "digits", "--out", "held.png")
    assert code == 0
    assert "1438 examples" in out
    assert Path("held.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = fedlga("data", "show", "--preset", "digits", "--out", "held.doc")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = fedlga("data", "fetch", "mnist")
    assert code == 2
    assert "it is not there; there is fashion-mnist" in err
    assert fedlga("data", "fetch", "digits")[1] == "digits: part of the package, complete and as published\n"
