"""`fedlga-node` without a network: when it asks, what it starts, and when Flower's own node runs instead."""

from __future__ import annotations

import importlib
import itertools
import sys
from types import SimpleNamespace

import pytest

from fedlga.backends.flower import flower_private, warm_node
from fedlga.backends.flower.warm_node import LONGEST_PAUSE, REPLY_PAUSE, SHORTEST_PAUSE, Pace

LOOP = "flwr.supernode.start_client_internal"
PULLS = "flwr.supercore.inflatable.inflatable_utils"


@pytest.fixture
def flower(monkeypatch):
    """Flower's node does not run; what it would be given is kept. Flower's modules are as before afterwards."""
    loop, pulls = importlib.import_module(LOOP), importlib.import_module(PULLS)
    monkeypatch.setattr(loop, "_pull_and_store_message", loop._pull_and_store_message)
    monkeypatch.setattr(loop, "_push_messages", loop._push_messages)
    monkeypatch.setattr(loop, "time", loop.time)
    for pull in (pulls.pull_objects, pulls.pull_and_inflate_object_from_tree):
        monkeypatch.setattr(pull, "__kwdefaults__", dict(pull.__kwdefaults__))
    monkeypatch.setattr(sys, "argv", ["fedlga-node"])
    ran: list[list[str]] = []
    devices: list[str] = []
    monkeypatch.setattr(warm_node, "run_supernode", lambda: ran.append(sys.argv))
    monkeypatch.setattr(warm_node, "Device", lambda address: devices.append(address) or SimpleNamespace())
    return SimpleNamespace(loop=loop, pulls=pulls, ran=ran, devices=devices)


def test_a_node_asks_at_once_and_then_less_and_less_often():
    pace = Pace()
    pauses = [pace.next_pause() for _ in range(30)]
    assert pauses[:3] == pytest.approx([0.1, 0.13, 0.169])
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE
    for before, after in itertools.pairwise(pauses):
        assert after <= 1.3 * before + 1e-9
    pace.heard("a message")
    assert {pace.next_pause() for _ in range(5)} == {REPLY_PAUSE}
    pace.heard(None)
    assert pace.next_pause() == SHORTEST_PAUSE, "a message came: the next one may come soon"


def test_flowers_loop_tells_what_it_pulled_and_pauses_as_told(flower, monkeypatch):
    """This fails if a new Flower's loop is another: then `fedlga-node` would be Flower's own node."""
    heard: list[object] = []
    slept: list[float] = []
    monkeypatch.setattr(flower_private.time, "sleep", slept.append)
    monkeypatch.setattr(flower.loop, "_pull_and_store_message", lambda **named: named["run"])
    assert flower_private.quicken_supernode(heard.append, lambda: 0.5)
    assert flower.loop._pull_and_store_message(run=7, receive=lambda: None) == 7
    assert flower.loop._pull_and_store_message(run=None, receive=lambda: None) is None
    assert heard == [7, None]
    flower.loop.time.sleep(3)
    flower.loop.time.sleep(0.2)
    assert slept == [0.5, 0.2]


def test_a_reply_to_an_old_message_is_not_taken_for_the_one_that_is_waited_for(flower, monkeypatch):
    """Flower's loop would ask for the next message after the first reply, and send the right one only then."""
    sent: list[str] = []
    ready = [["old"], ["other", "new"], ["next"]]

    def make(name):
        return SimpleNamespace(metadata=SimpleNamespace(message_id=name, reply_to_message_id=name))

    def push(*, send, state):
        for name in ready.pop(0):
            send(make(name), "tree", 0.1)

    monkeypatch.setattr(flower.loop, "_pull_and_store_message", lambda *, receive: receive() and 1)
    monkeypatch.setattr(flower.loop, "_push_messages", push)
    assert flower_private.quicken_supernode(lambda run: None, lambda: 0.5)
    flower.loop._pull_and_store_message(receive=lambda: (make("new"), "tree"))
    flower.loop._push_messages(send=lambda message, *_: sent.append(message.metadata.message_id), state=None)
    assert sent == ["old", "other", "new"]
    assert ready == [["next"]]


def test_parts_of_a_message_are_asked_for_again_soon(flower):
    """This fails if Flower's functions are others. The second part is there after three questions."""
    flower_private.quicken_pulls()
    asked: list[str] = []

    def pull(part):
        asked.append(part)
        if asked.count(part) < (3 if part == "b" else 1):
            raise flower.pulls.ObjectUnavailableError(part)
        return part.encode()

    waits = flower.pulls.pull_objects.__kwdefaults__["initial_backoff"]
    assert waits == flower_private.FIRST_PAUSE < 0.1
    assert flower.pulls.pull_objects(["a", "b"], pull) == {"a": b"a", "b": b"b"}
    assert sorted(asked) == ["a", "b", "b", "b"]


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ([], "127.0.0.1:9094"),
        (["--port", "7001"], "127.0.0.1:7001"),
        (["--host", "0.0.0.0", "--port=7001"], "127.0.0.1:7001"),
        (["--host", "::"], "[::1]:9094"),
        (["--por", "7001"], "127.0.0.1:7001"),
    ],
)
def test_the_device_process_is_told_where_its_node_listens(arguments, address, flower):
    warm_node.run(["--insecure", *arguments])
    assert flower.devices == [address]
    (given,) = flower.ran
    assert given[:2] == ["flower-supernode", "--insecure"]
    assert given[given.index("--isolation") + 1] == "process"
    parser = importlib.import_module("flwr.supernode.cli.flower_supernode")._parse_args_run_supernode()
    parsed = parser.parse_args(given[1:])
    assert parsed.isolation == "process"
    assert str(parsed.port) == address.rpartition(":")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["--isolation", "process"],
        ["--isolation=subprocess"],
        ["--ssl-certfile", "x"],
        ["--superexec-auth-secret-file", "secret"],
        ["--superexec-auth-sec", "secret"],
        ["--allow-runtime-dependency-installation"],
    ],
)
def test_arguments_that_ask_for_other_processes_get_flowers_own_node(words, flower, capsys):
    warm_node.run(["--insecure", *words])
    assert flower.devices == []
    assert flower.ran == [["flower-supernode", "--insecure", *words]]
    assert capsys.readouterr().err.count("flower-supernode runs instead") == 1


def test_a_flower_whose_loop_is_another_runs_as_it_is(flower, monkeypatch, capsys):
    monkeypatch.delattr(flower.loop, "_pull_and_store_message")
    warm_node.run(["--insecure"])
    assert flower.devices == []
    assert flower.ran == [["flower-supernode", "--insecure"]]
    assert "this Flower's node is not known" in capsys.readouterr().err


def test_a_flower_without_what_the_device_process_uses_runs_as_it_is(flower, monkeypatch, capsys):
    monkeypatch.setattr(warm_node, "DEVICE_PROCESS", "fedlga.backends.flower.no_such_module")
    before = flower.loop._pull_and_store_message
    warm_node.run(["--insecure"])
    assert flower.ran == [["flower-supernode", "--insecure"]]
    assert flower.loop._pull_and_store_message is before
    assert "this Flower's node is not known" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_is_flowers(word, flower, capsys):
    warm_node.run([word])
    assert flower.ran == [["flower-supernode", word]]
    assert flower.devices == []
    assert capsys.readouterr().err == ""


def test_a_node_whose_run_was_stopped_stops_its_work(flower, monkeypatch):
    """Flower's loop waits for a reply that never comes; the SuperLink says that the run is over."""
    stopped: list[bool] = []
    asked: list[int] = []
    monkeypatch.setattr(flower_private, "RUN_PAUSE", 0.0)
    monkeypatch.setattr(flower_private.time, "sleep", lambda seconds: None)

    def get_run(run):
        asked.append(run)
        if len(asked) == 1:
            raise OSError("the SuperLink is away")  # which says nothing of the run
        if len(asked) == 3:
            raise flower.loop.RunNotRunningException

    def wait_for_reply(**named):
        while True:
            flower.loop.time.sleep(0.5)

    def pull(*, receive, **named):
        receive()
        return 7

    monkeypatch.setattr(flower.loop, "_pull_and_store_message", pull)
    monkeypatch.setattr(flower.loop, "_push_messages", wait_for_reply)
    assert flower_private.quicken_supernode(lambda run: None, lambda: 0.5, lambda: stopped.append(True))
    message = SimpleNamespace(metadata=SimpleNamespace(message_id="m"))
    flower.loop._pull_and_store_message(receive=lambda: (message, None), get_run=get_run)
    flower.loop._push_messages(send=lambda *words: None)
    assert (asked, stopped) == ([7, 7, 7], [True])
