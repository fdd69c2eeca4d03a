"""Try a task's file the way a node meets it: alone, called task.py, in a new process with installed packages only.

`python -P -m fedlga.backends.flower.task_check FILE ANSWER` imports a task's file and writes what it lacks into ANSWER.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fedlga.core.settings import BadInput
from fedlga.learning.task import describe_error, load_task

FILE_NAME = "task.py"  # of every task on a node


def check_alone(task: Path, content: bytes) -> None:
    """Raise BadInput if a task's file, with this content, cannot be imported without the files beside it.

    Its functions are not called: what data() reads may be on the nodes and not here.
    """
    with tempfile.TemporaryDirectory(prefix="fedlga-task-") as name:
        folder = Path(name).resolve()
        (folder / "app").mkdir()
        (folder / "empty").mkdir()
        (folder / "app" / FILE_NAME).write_bytes(content)
        answer = folder / "answer.json"
        command = [sys.executable, "-P", "-m", __name__, str(folder / "app" / FILE_NAME), str(answer)]
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder / "empty",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )
        try:
            problem: dict[str, str] = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the file ended the process
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            problem = {"error": last}
    if "module" in problem:
        raise BadInput(
            f"{task.name} imports {problem['module']!r}, which does not go to the nodes; "
            "put it into the file, or into an installed package"
        )
    if "path" in problem:
        path = Path(problem["path"])
        beside = path.relative_to(folder / "app") if path.is_relative_to(folder / "app") else path
        raise BadInput(
            f"{task.name} opens {str(beside)!r} while it is imported, which does not go to the nodes; "
            "open it in data(), where it is on the nodes"
        )
    if problem:
        raise BadInput(f"{task.name} cannot be imported alone, as on the nodes: {problem['error']}")


def _environment() -> dict[str, str]:
    """Return this environment without PYTHONPATH: it is not the nodes'. fedlga itself is found as here."""
    others = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    source = Path(__file__).resolve().parents[3]
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(entry and Path(entry).resolve() == source for entry in listed):
        others["PYTHONPATH"] = str(source)
    return others


def find_problem(file: str) -> dict[str, str]:
    """Import a task's file; return the module or the path that it lacks, or another error; nothing if it is whole."""
    try:
        load_task(file)
    except BadInput as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return {"module": cause.name}
        if isinstance(cause, FileNotFoundError) and cause.filename:
            return {"path": os.fsdecode(cause.filename)}
        return {"error": str(error) if cause is None else describe_error(cause)}
    return {}


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(find_problem(sys.argv[1])), encoding="utf-8")
