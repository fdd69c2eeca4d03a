"""A learning task: model, data, loss, metrics and partition, from one Python file or from Python itself.

A task file has functions `model()` and `data()`, and may have `loss(outputs, targets)`, `metrics()`, `partition`,
`collate(examples)` and `experiment`, a dict of settings. `docs/own-data.md` says what each may return.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from fedlga.core.registry import SEAMS
from fedlga.core.settings import BadInput, choose

TASKS = SEAMS["task"].names  # the built-in ones: modules of the same form as a user's file
_LIBRARIES = {Path(__file__).parents[1], *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))}
MISTAKEN = {  # names that are not read, and what was meant; harmless if the file has that one too
    "criterion": "loss",
    "losses": "loss",
    "loss_fn": "loss",
    "partitioner": "partition",
    "collate_fn": "collate",
}
OPTIONAL = ("loss", "metrics", "partition", "collate", "experiment", "files")


@dataclass(frozen=True)
class Task:
    """What is learned. Only `model` and `data` are needed."""

    model: Callable[[], Any]  # returns an nn.Module
    data: Any  # a function that returns the data, or the data itself
    loss: Any = None  # a torch loss or a function of outputs and targets; None: by the targets
    metrics: Any = None  # a dict of names with functions or torchmetrics metrics, a list of names, or a function
    partition: Any = None  # a name, a function of (targets, devices, rng), or a partitioner of Flower Datasets
    collate: Callable[[list[Any]], Any] | None = None  # makes a batch of a list of examples
    experiment: Mapping[str, Any] = field(default_factory=dict[str, Any])  # settings that go with the task
    name: str = "task"
    files: Any = None  # a FileSet that is fetched first; `data` then gets the folder that they are in
    source: str = ""  # the file or module it came from; empty: it was made in Python
    about: str = ""  # the file's docstring
    named: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of a built-in dataset: its model and sizes

    def __post_init__(self) -> None:
        if not callable(self.model) or _is_module(self.model):
            raise BadInput(
                f"Task: model is a {type(self.model).__name__}; it takes a function that returns an nn.Module"
            )
        if not isinstance(self.experiment, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(f"Task: experiment is a {type(self.experiment).__name__}; it takes a dict of settings")
        if self.collate is not None and not callable(self.collate):
            raise BadInput(
                f"Task: collate is a {type(self.collate).__name__}; it takes a function of a list of examples"
            )

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what one of the task's functions returns; an error in it becomes one line that names it."""
        given = getattr(self, function)
        if not callable(given):
            return given
        try:
            return given(*arguments)
        except BadInput:
            raise
        except (Exception, SystemExit) as error:
            raise BadInput(f"{self.where}{function}() failed: {describe_error(error)}") from error

    @property
    def where(self) -> str:
        """The file's or the model's name, to begin a message with."""
        if self.named:
            return f"model {self.name!r}: "
        return f"{Path(self.source).name}: " if self.source.endswith(".py") else ""


def _is_module(given: Any) -> bool:
    """Return whether something is a model itself: it can be called too, but makes no model."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(given, torch.nn.Module)


def describe_error(error: BaseException) -> str:
    """Return an error in one line, with the user's own line that raised it: the last that is in no library."""
    text = (str(error).splitlines() or [""])[0]
    frames = list(traceback.extract_tb(error.__traceback__))
    own = [f for f in frames if not f.filename.startswith("<") and not _LIBRARIES & set(Path(f.filename).parents)]
    place = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def find_task_source(name: str) -> str:
    """Return where a task is: the absolute path of a file, or the name of a module."""
    if name in TASKS:
        return TASKS[name]
    if name.endswith(".py"):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise BadInput(f"task: there is no file {name!r}; it takes a Python file with model() and data()")
        return str(path)
    if all(part.isidentifier() for part in name.split(".")) and importlib.util.find_spec(name.partition(".")[0]):
        return name
    return choose("task", name, TASKS)


def load_task(name: str) -> Task:
    """Return the task of a built-in name, a Python file, or a module."""
    source = find_task_source(name)
    module = _import_file(Path(source)) if source.endswith(".py") else _import_module(source)
    where = Path(source).name if source.endswith(".py") else source
    for function in ("model", "data"):
        given = getattr(module, function, None)
        if not callable(given) or _is_module(given):
            got = "has no" if given is None else f"has a {type(given).__name__} in place of"
            raise BadInput(f"task: {where} {got} {function}(); it takes functions model() and data()")
    if unknown := [name for name in ("train_data", "test_data") if hasattr(module, name)]:
        raise BadInput(f"task: {where} has {unknown[0]}, which is not read; it takes data()")
    for found in vars(module):
        if (right := _find_meant(module, found)) is not None and not hasattr(module, right):
            raise BadInput(f"task: {where} has {found}, which is not read; it takes {right}")
    for wrong, right in MISTAKEN.items():
        if hasattr(module, wrong) and not hasattr(module, right):
            raise BadInput(f"task: {where} has {wrong}, which is not read; it takes {right}")
    given = {name: getattr(module, name) for name in OPTIONAL if getattr(module, name, None) is not None}
    try:
        title = Path(source).stem if source.endswith(".py") else source.rpartition(".")[2]
        about = (module.__doc__ or "").strip()
        return Task(
            module.model, module.data, **given, name=title, source=name if name in TASKS else source, about=about
        )
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from error


def _find_meant(module: ModuleType, name: str) -> str | None:
    """Return the name that is read, if another differs from it in nothing but capitals or an s, and is made here."""
    read = [right for right in OPTIONAL if right != "files"]
    meant = [right for right in read if right != name and right.rstrip("s") == name.lower().rstrip("s")]
    made_here = getattr(getattr(module, name), "__module__", module.__name__) == module.__name__
    return meant[0] if meant and made_here and not isinstance(getattr(module, name), ModuleType) else None


def _import_file(path: Path) -> ModuleType:
    """Import a file, again if it has changed."""
    try:
        return _import_content(path, hashlib.sha256(path.read_bytes()).hexdigest())
    except OSError as error:
        raise BadInput(f"task: {str(path)!r} cannot be read ({error.strerror})") from error


@functools.lru_cache(maxsize=8)
def _import_content(path: Path, digest: str) -> ModuleType:
    """Import a file under a name of its own; modules beside it can be imported from it."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does for a script
    name = f"fedlga_task_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}_{digest[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise BadInput(f"task: {path.name} is not valid Python: {error.msg} (line {error.lineno})") from error
    except (Exception, SystemExit) as error:
        raise BadInput(f"task: {path.name} cannot be imported: {describe_error(error)}") from error
    return module


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise BadInput(f"task: {name!r} cannot be imported: {describe_error(error)}") from error


def describe_for_worker(task: Task) -> dict[str, Any]:
    """Return what another process needs to make the same task: its file or names, or its functions themselves."""
    if task.named:
        return {"named": dict(task.named)}
    if task.source:
        return {"source": task.source}
    import base64

    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    plain = {f.name: getattr(task, f.name) for f in fields(task)}
    try:
        return {"pickled": base64.b64encode(cloudpickle.dumps(plain)).decode()}
    except Exception as error:
        raise BadInput(
            f"task: it cannot be sent to worker processes ({describe_error(error)}); use backend serial, or a file"
        ) from error


def open_in_worker(description: Mapping[str, Any]) -> Task:
    """Return the task that `describe_for_worker` described: it comes from the process that started this one."""
    if "source" in description:
        return load_task(description["source"])
    import base64
    import pickle

    values = pickle.loads(base64.b64decode(description["pickled"]))  # noqa: S301
    return Task(**cast("dict[str, Any]", values))
