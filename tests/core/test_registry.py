"""The registry: every built-in name, and one-line errors for names that do not fit."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest

from fedlga.core.registry import SEAMS, create, find, import_object, names_of
from fedlga.core.settings import BadInput, settings_of
from fedlga.core.types import Update
from fedlga.learning.task import Task

BUILT_IN = [(kind, name) for kind in SEAMS for name in names_of(kind)]
WITH_BASE = [kind for kind, seam in SEAMS.items() if seam.base]
MISSING = ["no_such_module:Name", "os:no_such_name", "os:", ":Name", ":", "os.path:", ".relative:Name", "..:Name"]


def refusal(kind: str, name: str) -> str:
    """Return the message with which a name is refused."""
    with pytest.raises(BadInput) as caught:
        find(kind, name)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{SEAMS[kind].field}: ")
    return message


@pytest.mark.parametrize(("kind", "name"), BUILT_IN)
def test_every_built_in_name_is_found(kind, name):
    found = find(kind, name)
    if SEAMS[kind].base:
        assert issubclass(found, import_object(kind, SEAMS[kind].base))
        assert not inspect.isabstract(found)
        assert all(f.metadata["meaning"] for f in settings_of(found))
    elif SEAMS[kind].load:  # a module with a model and data
        assert isinstance(found, Task)
        assert (found.source, found.name) == (name, name)
        assert find(kind, SEAMS[kind].names[name]).model is found.model
        return
    else:
        assert callable(found)
    assert find(kind, SEAMS[kind].names[name]) is found, "its path names the same thing"


def test_names_are_unique_over_all_kinds():
    """Settings are in tables by their owner's name, so no two kinds may share a name."""
    assert [name for name, count in Counter(name for _, name in BUILT_IN).items() if count > 1] == []
    paths = [path for seam in SEAMS.values() for path in seam.names.values()]
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("kind", [k for k in WITH_BASE if k != "fleet"])
def test_everything_can_be_created_with_its_defaults(kind):
    for name in names_of(kind):
        assert isinstance(create(kind, name), find(kind, name))


@pytest.mark.parametrize("kind", WITH_BASE)
@pytest.mark.parametrize("path", ["os:system", "os:environ", "builtins:dict", "fedlga.core.types:Update"])
def test_what_is_of_another_kind_is_refused(kind, path):
    base = SEAMS[kind].base
    expected = f"{path!r} is not a {base.rpartition(':')[2]}; it takes a class that extends {base.replace(':', '.')}"
    assert expected in refusal(kind, path)


@pytest.mark.parametrize("kind", WITH_BASE)
def test_a_built_in_of_another_kind_is_refused(kind):
    for other in WITH_BASE:
        if other != kind:
            path = next(iter(SEAMS[other].names.values()))
            assert "it takes a class that extends" in refusal(kind, path)


@pytest.mark.parametrize("kind", [kind for kind, seam in SEAMS.items() if not seam.load])
@pytest.mark.parametrize("path", MISSING)
def test_what_cannot_be_imported_is_refused(kind, path):
    message = refusal(kind, path)
    assert f"cannot import {path!r}" in message
    assert message.endswith("it takes package.module:name")


@pytest.mark.parametrize("path", [*MISSING, "no_such_module", "no.such.module", "..", ".relative"])
def test_a_task_that_is_no_module_is_refused(path):
    assert refusal("task", path) == f"task: there is no {path!r}; there is: shakespeare"


def test_a_model_that_is_not_a_function_is_refused():
    assert refusal("model", "os:name") == "model: 'os:name' is not a function"


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("method", "fedavrg", "method: there is no 'fedavrg'; did you mean 'fedavg'?"),
        ("policy", "kep", "stragglers: there is no 'kep'; did you mean 'keep'?"),
        ("optimizer", "zzz", "server_optimizer: there is no 'zzz'; there is: adagrad, adam, momentum, sgd, yogi"),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_that_was_probably_meant(kind, name, said):
    assert refusal(kind, name) == said


def test_settings_are_checked():
    assert create("method", "fedprox", {"mu": 1}).mu == 1.0
    with pytest.raises(BadInput, match=r"fedprox\.mu: got -1\.0; it takes a number of at least 0"):
        create("method", "fedprox", {"mu": -1.0})
    with pytest.raises(BadInput, match=r"fedprox\.nu: there is no such field; there is: mu"):
        create("method", "fedprox", {"nu": 1.0})


def test_a_users_own_class_is_found_by_its_path():
    method = create("method", "methods_for_tests:Forgetful", {"limit": 2})
    assert type(method).__name__ == "Forgetful"
    assert method.limit == 2.0
    assert import_object("anything", "fedlga.core.types:Update") is Update
