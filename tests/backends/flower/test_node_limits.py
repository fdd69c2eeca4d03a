"""What a node refuses to take from a message, in one line, and with nothing touched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict

import grids  # noqa: F401  # it makes this process one of a Flower run
from fedlga.backends.flower.messages import pack_assignment
from fedlga.backends.flower.node_limits import NodeLimits
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment
from fedlga.experiments.flower_client import client_app
from fedlga.experiments.presets import preset
from fedlga.learning.task import Task

EXPERIMENT = preset("digits").changed({"devices": 2, "cohort": 2, "partition": "iid", "steps_per_epoch": 2})
SIZE = (64 + 1) * 400 + (400 + 1) * 10  # of the MLP for the digits
ASSIGNMENT = Assignment(
    round=0, device=0, w=torch.zeros(SIZE), steps=2, steps_asked=10, lr=0.1, momentum=0.0, seed=0, broadcast={}
)


def ask(tmp_path, text=None, *, assignment=ASSIGNMENT, app=None, config=None, **setup):
    """Let a node carry out a message; return its reply."""
    setup = {"experiment": text or EXPERIMENT.to_toml(), "name": "run1", "counted": -1, **setup}
    message = Message(pack_assignment(assignment, ConfigRecord(setup)), 1, "train")
    message.metadata.__dict__["_message_id"] = "m"
    context = Context(1, 1, {"device": 0, "state-dir": str(tmp_path), **(config or {})}, RecordDict(), {})
    return (app or client_app())(message, context)


def change(line):
    """Return the experiment with one more line, or another one in its place."""
    name = line.partition(" =")[0]
    kept = [old for old in EXPERIMENT.to_toml().splitlines() if not old.startswith(f"{name} =")]
    tables = next((number for number, old in enumerate(kept) if old.startswith("[")), len(kept))
    return "\n".join([*kept[:tables], line, *kept[tables:]]) + "\n"


def test_an_honest_message_is_carried_out(tmp_path):
    assert ask(tmp_path).has_content()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('model = "os:getcwd"', "model: the message names 'os:getcwd'"),
        ('method = "antigravity:Fly"', "method: the message names 'antigravity:Fly'"),
        ('dataset = "evil.data:Data"', "dataset: the message names 'evil.data:Data'"),
        ('task = "/etc/passwd.py"', "task: the message names '/etc/passwd.py'"),
        ('task = "this"', "task: the message names 'this'"),
        ('[options."evil:Class"]', "options: the message names 'evil:Class'"),
        ('["evil:Class"]', "options: the message names 'evil:Class'"),
    ],
)
def test_a_node_imports_nothing_that_a_message_names(line, reason, tmp_path):
    text = change(line) if "=" in line else f"{EXPERIMENT.to_toml()}\n{line}\nx = 1\n"
    with pytest.raises(BadInput, match=f"{reason}; this node takes what comes with fedlga"):
        ask(tmp_path, text)


@pytest.mark.parametrize("name", ["memory", "data_dir"])
def test_a_node_takes_no_folder_from_a_message(name, tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir()
    (folder / "7.safetensors").write_text("somebody's")
    with pytest.raises(BadInput, match=rf"names a folder \({name}\); this node takes none"):
        ask(tmp_path / "state", **{name: str(folder)})
    assert [file.name for file in folder.iterdir()] == ["7.safetensors"]


@pytest.mark.parametrize(
    ("config", "changes", "reason"),
    [
        ({"most-steps": 1}, {}, "2 steps; this node takes 1"),
        ({}, {"steps": 10**9, "steps_asked": 10**9}, "1000000000 steps; this node takes 1000000"),
        ({"most-seconds": 5}, {"seconds": 6.0}, "6 seconds; this node takes 5"),
        ({}, {"seconds": 1e9}, "1e[+]09 seconds; this node takes 86400"),
        ({"most-megabytes": 0.01}, {}, "0.1 megabytes; this node takes 0.01"),
    ],
)
def test_a_node_works_as_much_as_its_configuration_says(config, changes, reason, tmp_path):
    with pytest.raises(BadInput, match=reason):
        ask(tmp_path, assignment=replace(ASSIGNMENT, **changes), config=config)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"w": torch.zeros(SIZE - 1)}, f"w is {SIZE - 1} of torch.float32, and the model {SIZE}"),
        ({"w": torch.zeros(SIZE).double()}, "w is .* of torch.float64"),
        ({"broadcast": {"control": torch.zeros(3)}}, "control is 3 of torch.float32"),
        ({"buffers": torch.zeros(3)}, "buffers is 3 of torch.float32, and the model 0"),
        ({"steps": 11}, "11 steps of 10"),
        ({"steps": -1}, "-1 steps of 10"),
        ({"exponent": 1e9}, "the exponent is 1000000000.0"),
        ({"exponent": float("nan")}, "the exponent is nan"),
    ],
)
def test_vectors_that_are_not_the_models_never_reach_compiled_code(changes, reason, tmp_path):
    with pytest.raises(BadInput, match=reason):
        ask(tmp_path, assignment=replace(ASSIGNMENT, **changes))


def test_without_a_deadline_a_node_stops_after_its_own_seconds():
    assert NodeLimits(seconds=5.0).limit(ASSIGNMENT).seconds == 5.0
    assert NodeLimits().limit(ASSIGNMENT).seconds is None  # and the compiled kernel can be used


def test_modules_that_the_app_or_the_node_lists_may_be_named(tmp_path):
    text = change('method = "methods_for_tests:Forgetful"')
    with pytest.raises(BadInput, match="method"):
        ask(tmp_path / "none", text, config={"modules": "methods_for"})
    assert ask(tmp_path / "app", text, app=client_app(modules=["methods_for_tests"])).has_content()
    assert ask(tmp_path / "node", text, config={"modules": "other, methods_for_tests"}).has_content()


def test_the_task_of_an_app_is_its_own_whatever_a_message_names(tmp_path):
    """The aggregator's path of the same file is in its experiment."""

    def data():
        return torch.randn(40, 4), torch.arange(40) % 2

    app = client_app(task=Task(lambda: torch.nn.Linear(4, 2), data))
    experiment = preset("digits").changed({"devices": 2, "cohort": 2}).for_task("/nowhere/task.py", {})
    reply = ask(tmp_path, experiment.to_toml(), app=app, assignment=replace(ASSIGNMENT, w=torch.zeros(10)))
    assert reply.has_content()


@pytest.mark.parametrize("config", [{"most-steps": "many"}, {"most-seconds": 0}, {"most-megabytes": True}])
def test_wrong_limits_are_refused(config):
    with pytest.raises(BadInput, match="it takes a number above 0"):
        NodeLimits.read(config)
