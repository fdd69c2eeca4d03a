"""Run an experiment on the nodes of a running SuperLink: submit it as a Flower app, and follow its log."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import tomli_w

from fedlga.backends.flower.commands import QUIET, explain, find_command, read_json, run_flwr, unbox
from fedlga.backends.flower.installed import check_installed
from fedlga.core.registry import SEAMS
from fedlga.core.settings import BadInput
from fedlga.core.text import clean_text
from fedlga.core.types import Record
from fedlga.experiments.config import TASK_MODULE, Experiment

RECORD = "fedlga-record "  # begins a line of the log that holds a round's record
DONE = "fedlga-done "  # and one after the last round
FAILED = "fedlga-failed "  # and one that says why there will be no more
LONGEST_FAILURE = 2000  # letters
PACKAGE = "fedlga_experiment"
COMPLETED = "finished:completed"  # what Flower calls a run that ended well


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
    run, over, last = _find_run(output, superlink), False, ""
    try:
        with _follow(run, superlink) as lines:
            for line in lines:
                if line.startswith(RECORD):
                    yield Record.from_dict(json.loads(line.removeprefix(RECORD)))
                elif line.startswith(FAILED):
                    raise BadInput(clean_text(line.removeprefix(FAILED).strip(), LONGEST_FAILURE))
                elif line.startswith(DONE):
                    over = True
                elif text := unbox(line):
                    last = text
        if not over:
            raise BadInput(f"--superlink: the run ended early ({last or 'its log says nothing'})")
    finally:
        if not over:
            with contextlib.suppress(BadInput, subprocess.SubprocessError):
                _flwr("stop", run, superlink)


def run_app(app: Path, superlink: str, settings: Mapping[str, Any], say: Callable[[str], None]) -> bool:
    """Run a Flower app on a SuperLink and show its log; return whether it ended well. `flwr run` does not tell."""
    check_installed()
    config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
    words = ["run", str(app), superlink, "--format", "json", *(["--run-config", config] if config else [])]
    run = _find_run(_flwr(*words), superlink)
    over = False
    try:
        with _follow(run, superlink) as lines:
            for line in lines:
                say(clean_text(line.rstrip(), LONGEST_FAILURE))
        over = True
    finally:
        if not over:
            with contextlib.suppress(BadInput, subprocess.SubprocessError):
                _flwr("stop", run, superlink)
    listing = _flwr("list", superlink, "--run-id", run, "--format", "json")
    rows: list[dict[str, Any]] = (read_json(listing.stdout) or {}).get("runs") or []
    if len(rows) != 1:
        raise BadInput(f"--superlink: it does not say how the run ended ({explain(listing)})")
    (row,) = rows
    say(f"run {run}: {clean_text(row['status'])}")
    return row["status"] == COMPLETED


def _find_run(output: subprocess.CompletedProcess[str], superlink: str) -> str:
    """Return the id of a run that was just submitted."""
    run = str((read_json(output.stdout) or {}).get("run-id") or "")
    if not run:
        raise BadInput(f"--superlink: {superlink!r} did not take the run ({explain(output)})")
    return run


@contextlib.contextmanager
def _follow(run: str, superlink: str) -> Generator[Iterable[str]]:
    """Give the lines of a run's log, as they come."""
    log = subprocess.Popen(  # noqa: S603
        [find_command("flwr"), "log", run, superlink, "--stream"],
        # Into a pipe, Flower's log would come in blocks of many rounds.
        env={**os.environ, **QUIET, "COLUMNS": "1000", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # a Ctrl-C goes to this process, which stops the run
    )
    assert log.stdout is not None
    try:
        yield log.stdout
    finally:
        log.kill()
        log.wait()
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
    (package / "__init__.py").write_text("", encoding="utf-8")
    modules: list[str] = []
    if e.task is not None and e.task.endswith(".py"):
        modules.append(f"{TASK_MODULE}{Path(e.task).stem}")
        shutil.copy(e.task, folder / f"{modules[0]}.py")
    own = ("dataset", "model") if e.task is not None else ()
    names = {e.name_of(kind) for kind, seam in SEAMS.items() if seam.in_experiment and kind not in own}
    plugins = sorted({name.partition(":")[0].partition(".")[0] for name in names if ":" in name})
    modules += [module for module in plugins if _copy_module(module, folder)]
    # Flower reads the file's text and looks for an assignment to `app`: an import is not enough.
    text = "from fedlga.experiments import flower_{0}\n\napp = flower_{0}.{1}\n"
    (package / "server.py").write_text(text.format("server", "app"), encoding="utf-8")
    # What comes with the app may be named in its messages; anything else, a node's own configuration allows.
    client = text.format("client", f"client_app(modules={modules!r})")
    (package / "client.py").write_text(client, encoding="utf-8")


def _as_sent(e: Experiment) -> Experiment:
    """Return the experiment as nodes get it: a task's file is a module of the app there."""
    if e.task is None or not e.task.endswith(".py"):
        return e
    return dataclasses.replace(e, task=f"{TASK_MODULE}{Path(e.task).stem}")


def _copy_module(name: str, folder: Path) -> bool:
    """Copy a module of the user's folder into the app; one that is installed has to be installed on all nodes.

    Return whether it was copied. Nodes take an installed one only if their configuration lists it.
    """
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin) if spec is not None and spec.origin is not None else None
    if source is None or Path.cwd() not in source.parents or "site-packages" in source.parts:
        return False
    if source.name == "__init__.py":
        shutil.copytree(source.parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, folder / source.name)
    return True


def _flwr(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return run_flwr(*words)
    except BadInput as error:
        raise BadInput(f"--superlink: {error}") from error
