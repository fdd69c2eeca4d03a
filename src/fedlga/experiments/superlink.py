"""Run an experiment on the nodes of a running SuperLink: submit it as a Flower app, and follow its log."""

from __future__ import annotations

import contextlib
import dataclasses
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

from fedlga.backends.flower.installed import check_installed
from fedlga.core.registry import SEAMS
from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.config import TASK_MODULE, Experiment

RECORD = "fedlga-record "  # begins a line of the log that holds a round's record
DONE = "fedlga-done "  # and one after the last round
FAILED = "fedlga-failed "  # and one that says why there will be no more
PACKAGE = "fedlga_experiment"
FRAME = " \n│╭╮╰╯─"  # Flower draws frames around its errors


def submit(
    experiment: Experiment, folder: Path, superlink: str, *, resume: bool = False, data_dir: str | None = None
) -> Generator[Record]:
    """Run an experiment on a SuperLink that Flower's configuration knows as `superlink`, round by round.

    The aggregator runs beside the SuperLink and keeps the run folder there, at the same path as here. If the caller
    stops in the middle, the run is stopped.
    """
    check_installed()
    e = experiment.resolved()
    with tempfile.TemporaryDirectory(prefix="fedlga-app-") as app:
        if e.task is not None and e.task.endswith(".py") and not Path(e.task).is_file():
            raise BadInput(f"task: there is no file {e.task!r}; it takes a Python file with model() and data()")
        _write_app(Path(app), e, {"out": str(folder.resolve()), "resume": resume, "data_dir": data_dir or ""})
        output = _flwr("run", app, superlink, "--format", "json")
    try:
        run = str(json.loads(output.stdout[output.stdout.index("{") :])["run-id"])
    except (ValueError, KeyError) as error:
        raise BadInput(f"--superlink: {superlink!r} did not take the run ({_reason(output)})") from error
    log = subprocess.Popen(  # noqa: S603
        [*_command("log"), run, superlink, "--stream"],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        start_new_session=True,  # a Ctrl-C goes to this process, which stops the run
    )
    over, last = False, ""
    try:
        assert log.stdout is not None
        for line in log.stdout:
            if line.startswith(RECORD):
                yield Record.from_dict(json.loads(line.removeprefix(RECORD)))
            elif line.startswith(FAILED):
                raise BadInput(line.removeprefix(FAILED).strip())
            elif line.startswith(DONE):
                over = True
            elif text := line.strip(FRAME):
                last = text
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
    """Write a Flower app that holds the experiment, and the user's own modules that it names."""
    settings: dict[str, Any] = {
        "project": {"name": "fedlga-experiment", "version": "1.0.0", "license": "Apache-2.0", "dependencies": []},
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedlga",
                    "components": {"serverapp": f"{PACKAGE}.server:app", "clientapp": f"{PACKAGE}.client:app"},
                    "config": {"experiment": _as_sent(e).to_toml(), **config},
                }
            }
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    package = folder / PACKAGE
    package.mkdir()
    for name in ("client", "server"):
        # Flower reads the file's text and looks for an assignment to `app`: an import is not enough.
        text = f"from fedlga.experiments import flower_{name}\n\napp = flower_{name}.app\n"
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    if e.task is not None and e.task.endswith(".py"):
        shutil.copy(e.task, folder / f"{TASK_MODULE}{Path(e.task).stem}.py")
    for name in {e.name_of(kind) for kind in SEAMS if not (e.task is not None and kind in ("dataset", "model"))}:
        if ":" in name:
            _copy_module(name.partition(":")[0].partition(".")[0], folder)


def _as_sent(e: Experiment) -> Experiment:
    """Return the experiment as nodes get it: a task's file is a module of the app there."""
    if e.task is None or not e.task.endswith(".py"):
        return e
    return dataclasses.replace(e, task=f"{TASK_MODULE}{Path(e.task).stem}")


def _copy_module(name: str, folder: Path) -> None:
    """Copy a module of the user's folder into the app; one that is installed has to be installed on all nodes."""
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


def _reason(output: subprocess.CompletedProcess[str]) -> str:
    """Return what Flower printed, in one line, without its frames."""
    lines = [line.strip(FRAME) for line in (output.stdout + output.stderr).splitlines()]
    words = " ".join(line for line in lines if line and not line.startswith(("Usage", "Try", "Error ─")))
    return words[:300] or f"flwr ended with {output.returncode}"
