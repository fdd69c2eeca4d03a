"""Tasks from files, modules and Python; one line for what is wrong with them; the same task in another process."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedlga
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.learning.named import named_task, open_task
from fedlga.learning.task import TASKS, Task, describe_error, describe_for_worker, load_task, open_in_worker
from run_folders import assert_same_state

GOOD = '''"""Learns nothing."""

experiment = {"rounds": 3}


def model():
    return "a model"


def data():
    return "the data"
'''


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a task's file; its folder is on sys.path only during the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])

    def write(text: str, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def refusal(name: str) -> str:
    with pytest.raises(BadInput) as error:
        load_task(name)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


# Loading


def test_a_task_from_a_file(write):
    file = write(GOOD)
    task = load_task(file)
    assert (task.name, task.source, task.about) == ("mine", file, "Learns nothing.")
    assert (task.call("model"), task.call("data")) == ("a model", "the data")
    assert task.experiment == {"rounds": 3}
    assert (task.loss, task.metrics, task.partition, task.collate) == (None, None, None, None)
    assert task.where == "mine.py: "


def test_a_task_from_a_file_has_an_absolute_path(write, monkeypatch, tmp_path):
    file = write(GOOD, "here.py")
    monkeypatch.chdir(tmp_path)
    assert load_task("here.py").source == file


def test_a_file_may_import_its_neighbours(write):
    write("ANSWER = 42\n", "neighbour_of_a_task.py")
    file = write(
        "from neighbour_of_a_task import ANSWER\ndef model(): return ANSWER\ndef data(): pass\n", "with_one.py"
    )
    assert load_task(file).call("model") == 42


def test_two_files_of_one_name_are_two_tasks(write, tmp_path):
    (tmp_path / "other").mkdir()
    first = write(GOOD, "twin.py")
    second = write(GOOD.replace("a model", "another"), "other/twin.py")
    assert [load_task(file).call("model") for file in (first, second)] == ["a model", "another"]


def test_a_file_that_was_changed_is_read_again(write):
    """In a notebook, a task is loaded, corrected and loaded again; a run keeps a copy of what it was started with."""
    file = write(GOOD, "corrected.py")
    assert load_task(file).call("model") == "a model"
    write(GOOD.replace("a model", "a better model"), "corrected.py")
    assert load_task(file).call("model") == "a better model"


def test_a_task_from_a_module():
    task = load_task("task_for_tests")
    assert task.source == task.name == "task_for_tests"
    assert task.experiment["devices"] == 6
    assert task.where == ""


@pytest.mark.parametrize("name", TASKS)
def test_built_in_tasks_keep_their_names(name):
    task = load_task(name)
    assert (task.name, task.source) == (name, name)
    assert task.about


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def model(:\n    pass\n", ["is not valid Python", "line 1"]),
        ("x = 1\nimport no_such_module_at_all\n", ["cannot be imported: ModuleNotFoundError", "(mine.py, line 2)"]),
        ("x = 1\n\nraise ValueError('one\\ntwo')\n", ["cannot be imported: ValueError: one (mine.py, line 3)"]),
        ("def data(): pass\n", ["has no model()", "it takes functions model() and data()"]),
        ("def model(): pass\n", ["has no data()"]),
        ("def model(): pass\ndata = 3\n", ["has a int in place of data()"]),
        ("", ["has no model()"]),
        (GOOD + "train_data = 1\n", ["has train_data, which is not read"]),
        (GOOD + "experiment = 3\n", ["experiment is a int; it takes a dict of settings"]),
        (GOOD + "collate = 3\n", ["collate is a int"]),
    ],
    ids=range(10),
)
def test_a_file_that_is_no_task_is_refused_in_one_line(write, text, words, request):
    name = f"no_task_{request.node.callspec.indices['text']}.py"
    text = refusal(write(text, name))
    assert name in text
    for word in words:
        assert word.replace("mine.py", name) in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere/mine.py", ["there is no file 'nowhere/mine.py'"]),
        ("shakespear", ["did you mean 'shakespeare'?"]),
        ("no.such.module", ["there is no 'no.such.module'"]),
        ("json.nothing", ["'json.nothing' cannot be imported"]),
        ("json", ["json has no model()"]),
        ("", ["there is no ''"]),
        ("a b", ["there is no 'a b'"]),
    ],
)
def test_a_name_that_is_no_task_is_refused_in_one_line(name, words):
    text = refusal(name)
    assert text.startswith("task: ")
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"model": nn.Linear}, None),
        ({"model": nn.Linear(2, 2)}, "model is a Linear; it takes a function that returns an nn.Module"),
        ({"model": 3}, "model is a int; it takes a function that returns an nn.Module"),
        ({"experiment": [1]}, "experiment is a list; it takes a dict of settings"),
        ({"collate": "x"}, "collate is a str; it takes a function of a list of examples"),
    ],
)
def test_a_task_made_in_python(parts, words):
    given = {"model": dict, "data": None, **parts}
    if words is None:
        Task(**given)
        return
    with pytest.raises(BadInput) as error:
        Task(**given)
    assert str(error.value) == f"Task: {words}"


# Errors in the task's own functions


def test_an_error_in_data_is_named_with_the_user_s_line(write):
    task = load_task(write("def model(): pass\n\n\ndef data():\n    return int('x')\n", "fails.py"))
    with pytest.raises(BadInput) as error:
        task.call("data")
    assert str(error.value) == (
        "fails.py: data() failed: ValueError: invalid literal for int() with base 10: 'x' (fails.py, line 5)"
    )


def test_an_error_in_a_library_is_named_with_the_user_s_line(write):
    """The last line of the traceback is in numpy's file, which tells the user nothing."""
    text = "import numpy as np\n\ndef model(): pass\n\ndef data():\n    return np.load('nowhere.npy')\n"
    with pytest.raises(BadInput, match=r"FileNotFoundError: .*'nowhere\.npy' \(in_numpy\.py, line 6\)$"):
        load_task(write(text, "in_numpy.py")).call("data")


def test_a_function_with_other_arguments_is_not_looked_for_in_fedlga(write):
    with pytest.raises(BadInput) as error:
        load_task(write("def model(size): pass\ndef data(): pass\n", "takes_more.py")).call("model")
    assert "takes_more.py: model() failed: TypeError" in str(error.value)
    assert "task.py, line" not in str(error.value)


def test_an_error_without_words_or_with_many():
    assert describe_error(KeyError()) == "KeyError"
    assert describe_error(ValueError("one\ntwo")) == "ValueError: one"


def test_a_refusal_of_ours_stays_as_it_is():
    def data():
        raise BadInput("data: mine")

    with pytest.raises(BadInput, match=r"^data: mine$"):
        Task(dict, data).call("data")


def test_what_is_no_function_is_returned():
    assert Task(dict, (1, 2), metrics=["mae"]).call("data") == (1, 2)
    assert Task(dict, None, metrics=["mae"]).call("metrics") == ["mae"]


# Other processes


def test_a_file_or_a_name_is_all_that_a_worker_needs(write):
    file = write(GOOD, "sent.py")
    assert describe_for_worker(load_task(file)) == {"source": file}
    assert open_in_worker({"source": file}).call("model") == "a model"
    named = describe_for_worker(named_task("mlp", (1, 8, 8), 10))
    assert named == {"named": {"model": "mlp", "shape": [1, 8, 8], "classes": 10}}
    assert isinstance(open_task(named).call("model"), nn.Module)


def test_functions_made_here_are_sent_themselves():
    width = 7
    sent = describe_for_worker(Task(lambda: nn.Linear(width, 1), None, metrics={"one": lambda o, t: 1.0}, name="mine"))
    assert sent.keys() == {"pickled"}
    opened = open_in_worker(sent)
    assert opened.name == "mine"
    assert opened.call("model").in_features == 7
    assert opened.metrics["one"](None, None) == 1.0


def test_what_cannot_be_sent_is_refused_in_one_line():
    lock = threading.Lock()
    with pytest.raises(BadInput) as error:
        describe_for_worker(Task(lambda: lock, None))
    assert str(error.value).startswith("task: it cannot be sent to worker processes (TypeError: cannot pickle")
    assert str(error.value).endswith("use backend serial, or a file")
    assert len(str(error.value).splitlines()) == 1


class Rows(torch.utils.data.Dataset):
    """Read row by row, so that workers need the dataset itself."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index):
        x = np.random.default_rng(index).standard_normal(2)
        return x, x @ np.array([1.0, -2.0])


@pytest.mark.parametrize("kind", ["arrays", "rows", "one a device"])
def test_a_task_made_in_python_gives_the_same_bits_in_the_pool(tmp_path, kind):
    scale = 0.5

    def data():
        if kind == "rows":
            return Rows()
        x = np.random.default_rng(0).standard_normal((60, 2))
        y = x @ np.array([1.0, -2.0])
        return (x, y) if kind == "arrays" else {str(i): (x[i::4], y[i::4]) for i in range(4)}

    task = Task(
        lambda: nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 1)),
        data,
        loss=lambda outputs, targets: scale * (outputs - targets).square().mean(),
        metrics={"mae": None, "largest": lambda outputs, targets: (outputs - targets).abs().max()},
        name="mine",
    )
    settings = {"rounds": 2, "epochs": 2, "method": "scaffold", "lr": 0.1}
    settings |= {} if kind == "one a device" else {"devices": 4, "cohort": 4}
    for backend in ("serial", "pool"):
        fedlga.run(Experiment(backend=backend, workers=2, **settings), tmp_path / backend, task=task)
    assert_same_state(tmp_path / "serial", tmp_path / "pool")
    assert Path(tmp_path / "pool" / "summary.json").is_file()
