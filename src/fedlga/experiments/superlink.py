"""An experiment on the nodes of a running SuperLink: handed to it as a Flower app, and followed through its log."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import tomli_w

from ..experiment import Experiment
from ..settings import BadInput
from ..types import Record
from . import check_installed

RECORD = "fedlga-record "  # begins a line of the log that holds a round's record
FAILED = "fedlga-failed "  # and one that says why there will be no more
PACKAGE = "fedlga_experiment"


def submitted(
    experiment: Experiment, folder: Path, superlink: str, *, resume: bool = False, data_dir: str | None = None
) -> Generator[Record]:
    """Run an experiment on a SuperLink that Flower's configuration knows as `superlink`, round by round.

    The aggregator runs beside the SuperLink and keeps the run folder there, at the same path as here. Whoever stops in
    the middle stops the run.
    """
    check_installed()
    e = experiment.resolved()
    with tempfile.TemporaryDirectory(prefix="fedlga-app-") as app:
        _write_app(Path(app), e, {"out": str(folder.resolve()), "resume": resume, "data_dir": data_dir or ""})
        said = _flwr("run", app, superlink, "--format", "json")
    try:
        run = str(json.loads(said.stdout[said.stdout.index("{") :])["run-id"])
    except (ValueError, KeyError) as error:
        raise BadInput(f"--superlink: {superlink!r} did not take the run ({_reason(said)})") from error
    log = subprocess.Popen(  # noqa: S603
        [*_command("log"), run, superlink, "--stream"],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # a Ctrl-C is for us: we stop the run when it is time
    )
    over, last = False, ""
    try:
        assert log.stdout is not None
        for line in log.stdout:
            if line.startswith(RECORD):
                yield Record.from_dict(json.loads(line.removeprefix(RECORD)))
            elif line.startswith(FAILED):
                raise BadInput(line.removeprefix(FAILED).strip())
            elif line.startswith("run folder: "):
                over = True
            elif line.strip():
                last = line.strip()
        if not over:
            raise BadInput(f"--superlink: the run ended early ({last or 'its log says nothing'})")
    finally:
        if not over:
            with contextlib.suppress(BadInput, subprocess.SubprocessError):
                _flwr("stop", run, superlink)
        log.kill()
        log.wait()
        assert log.stdout is not None
        log.stdout.close()


def _write_app(folder: Path, e: Experiment, config: dict[str, Any]) -> None:
    """A Flower app that holds the experiment, and modules of the user's own that it names."""
    settings: dict[str, Any] = {
        "project": {"name": "fedlga-experiment", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedlga",
                    "components": {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"},
                    "config": {"experiment": e.to_toml(), **config},
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    package = folder / PACKAGE
    package.mkdir()
    for name, source in (("client", "device"), ("server", "aggregator")):
        text = f"from fedlga.flower import {source}\n\napp = {source}.app\n"  # Flower looks for an assignment
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    for name in (e.model, e.method):
        if ":" in name:
            _copy_module(name.partition(":")[0].partition(".")[0], folder)


def _copy_module(name: str, folder: Path) -> None:
    """A module of the user's own folder goes along; one that is installed is expected to be so everywhere."""
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin) if spec is not None and spec.origin is not None else None
    if source is None or Path.cwd() not in source.parents or "site-packages" in source.parts:
        return
    if source.name == "__init__.py":
        shutil.copytree(source.parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, folder / source.name)


def _command(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("flwr")), *words]


def _environment() -> dict[str, str]:
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "COLUMNS": "1000"}
    return {**os.environ, **quiet, "PYTHONUNBUFFERED": "1"}  # into a pipe, Flower's log comes in blocks of many rounds


def _flwr(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(  # noqa: S603
            _command(*words), env=_environment(), capture_output=True, text=True, timeout=300, check=False
        )
    except OSError as error:
        raise BadInput(f"--superlink: cannot start flwr ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise BadInput("--superlink: no answer from it in five minutes") from error


def _reason(said: subprocess.CompletedProcess[str]) -> str:
    """What Flower said, in one line, without its frames."""
    lines = [line.strip(" │╭╮╰╯─") for line in (said.stdout + said.stderr).splitlines()]
    words = " ".join(line for line in lines if line and not line.startswith(("Usage", "Try", "Error ─")))
    return words[:300] or f"flwr ended with {said.returncode}"
