"""fedlga doctor: what is here, what is missing, how to get it."""

from __future__ import annotations

import json

import fedlga as package


def test_everything_is_named_with_its_state(fedlga):
    code, out, err = fedlga("doctor")
    assert (code, err) == (0, "")
    assert out.startswith(f"ok       fedlga         {package.__version__}, Python ")
    assert max(map(len, out.splitlines())) <= 100
    assert "missing  fashion-mnist  fetched on first use, or by: fedlga data fetch" in out
    assert "ok       digits         part of the package" in out


def test_a_compiler_and_a_package_that_are_missing(fedlga, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setitem(__import__("fedlga.cli.doctor", fromlist=["PACKAGES"]).PACKAGES, "nothing", ("flower", "x"))
    findings = {finding["name"]: finding for finding in json.loads(fedlga("doctor", "--json")[1])}
    assert findings["C compiler"]["state"] == "missing"
    assert findings["C compiler"]["text"].endswith("install gcc")
    assert findings["nothing"]["text"] == "x; pip install 'fedlga[flower]'"


def test_a_cache_that_cannot_be_written_is_broken(fedlga, monkeypatch):
    monkeypatch.setenv("FEDLGA_DATA", "/proc/none")
    code, out, _ = fedlga("doctor")
    assert code == 1
    assert "broken   cache          cannot write to /proc/none" in out
