"""Compiled code where there is no compiler, or one that fails: everything works without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedlga.core.kernels import compiler, updates
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import rounds
from fedlga.learning.kernels import mlp
from fedlga.learning.kernels.mlp import load_function

pytestmark = pytest.mark.slow

SOURCES = [Path(mlp.__file__).with_name("mlp.c"), Path(updates.__file__).with_name("updates.c")]


def test_there_is_a_compiler_here():
    """Otherwise other tests would compare torch's results with themselves."""
    assert load_function() is not None
    assert updates._functions() is not None


def test_without_a_compiler_the_same_federation_runs(tmp_path):
    """In a process of its own, where no compiler is on the path and nothing was compiled before."""
    script = (
        "from fedlga.experiments.presets import preset; from fedlga.experiments.simulation import rounds;"
        "from fedlga.core.kernels import updates; from fedlga.learning.kernels.mlp import load_function;"
        "last = list(rounds(preset('digits').changed({'rounds': 3})))[-1];"
        "print(load_function() is None and updates._functions() is None, last.accuracy)"
    )
    environment = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "CC": "", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    plain, accuracy = done.stdout.split()
    assert plain == "True"
    here = list(rounds(preset("digits").changed({"rounds": 3})))[-1].accuracy
    assert float(accuracy) == pytest.approx(here, abs=0.01)


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize("script", ["exit 1", "echo version; [ $# -eq 1 ]", "echo version"])
def test_a_compiler_that_fails_counts_as_none(tmp_path, monkeypatch, script, source):
    broken = tmp_path / "cc"
    broken.write_text(f"#!/bin/sh\n{script}\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert compiler.load_library.__wrapped__(source) is None
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_what_was_compiled_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    """A power cut can keep a name and lose the content; a library of zeros would never be made again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "one.c").write_text("int one(void) { return 1; }")
    synced: list[bytes] = []
    monkeypatch.setattr("fedlga.core.files.sync", lambda path: synced.append(path.read_bytes()))
    library = compiler.load_library.__wrapped__(tmp_path / "one.c")
    assert library.one() == 1
    assert synced == [file.read_bytes() for file in tmp_path.glob("cache/fedlga/kernels/*.so")]
