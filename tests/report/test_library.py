"""The plotting library that pages are made with: the files as they were published, and its licence."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedlga.report.page import WEB

PUBLISHED = {  # of the package uplot 1.6.32 on npm, whose own hash there is sha512-KIMVnG68zvu5XXUbC4LQEPnhwOx...
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_the_files_are_those_that_were_published():
    lines = (WEB / "uplot" / "SHA256SUMS").read_text().splitlines()
    assert dict(reversed(line.split()) for line in lines) == PUBLISHED
    for name, expected in PUBLISHED.items():
        assert hashlib.sha256((WEB / "uplot" / name).read_bytes()).hexdigest() == expected


def test_its_licence_is_named_and_there():
    assert "Copyright (c) 2022 Leon Sorokin" in (WEB / "uplot" / "LICENSE").read_text()
    notice = Path(__file__).parents[2] / "NOTICE"
    assert "uPlot 1.6.32" in notice.read_text()
    assert (
        (WEB / "uplot" / "uPlot.iife.min.js").read_text().startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32)")
    )


def test_pages_ask_nobody_for_anything():
    """Neither our scripts nor our styles name an address; of the library, only its comment does."""
    for file in (*WEB.glob("*.js"), *WEB.glob("*.css"), *WEB.glob("*.html")):
        text = file.read_text().replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
        assert "http" not in text and "//cdn" not in text and "@import" not in text and "url(" not in text, file.name
        assert not any(
            word in text for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(")
        ), file.name
