"""Flower's nodes as devices, in this process: what they do, and what must never reach the model."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
import time
from dataclasses import replace
from threading import Timer

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fedlga.experiment import preset
from fedlga.federation import rounds
from fedlga.flower import nodes
from fedlga.flower.aggregator import own_federation
from fedlga.flower.device import Home, client_app
from fedlga.flower.messages import NUMBERS, TOLD, VECTORS, Refused, task_content, task_of, update_content, update_of
from fedlga.flower.nodes import NodesFailed
from fedlga.settings import BadInput
from fedlga.simulation import simulate
from fedlga.types import Task, Update
from grids import HereGrid
from test_backends_agree import HARD, PAIRS, outcome

SMALL = {"devices": 4, "cohort": 4, "partition": "iid", "rounds": 3, "steps_per_epoch": 2, "backend": "flower"}
REAL = {**SMALL, "fleet": "real", "deadline": 60.0, "grace": 0.2}


def play(experiment, grid, before=lambda round: None):
    """Weights and records; `before` is told the number of each round before it begins."""
    records = []
    with simulate(experiment, grid=grid) as simulation:
        before(1)
        server = simulation.start
        for server, record in rounds(simulation.federation, simulation.start, experiment.rounds):  # noqa: B007
            records.append(record)
            before(record.round + 1)
    return server.w.clone(), records


@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_nodes_give_what_serial_gives_to_the_last_bit(method, policy, tmp_path):
    experiment = preset("digits").changed({**HARD, "method": method, "stragglers": policy})
    server, _, records = outcome(experiment)
    w, others = play(experiment.changed({"backend": "flower"}), HereGrid(8, tmp_path))
    assert torch.equal(server.w, w)
    assert [replace(record, seconds=0.0) for record in others] == records


def test_an_audit_goes_through_flower_too(tmp_path):
    experiment = preset("digits").changed({**HARD, "audit": True})
    _, _, records = outcome(experiment)
    _, others = play(experiment.changed({"backend": "flower"}), HereGrid(8, tmp_path))
    assert [record.audit for record in others] == [record.audit for record in records]


def test_the_memory_of_a_device_stays_with_it_and_only_updates_cross(tmp_path):
    experiment = preset("digits").changed({**SMALL, "method": "scaffold"})
    grid = HereGrid(4, tmp_path)
    with simulate(experiment, grid=grid) as simulation:
        *_, (server, _) = rounds(simulation.federation, simulation.start, 3)
        checkpoint = {device: dict(memory) for device, memory in simulation.federation.backend.memories()}
        size = len(server.w)
    assert list(checkpoint) == [0]  # the run's name, and which rounds counted
    assert sorted(checkpoint[0]) == ["flower.counted", "flower.name"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]
    for content in grid.crossed:
        if set(content) == {NUMBERS}:  # the answer to "who are you?"
            assert set(content[NUMBERS]) == {"device", "examples"}
            continue
        assert set(content) == {VECTORS, NUMBERS}
        assert set(content[NUMBERS]) == set(TOLD)
        shapes = {name: tuple(array.shape) for name, array in content[VECTORS].items()}
        assert shapes == {"delta": (size,), "control": (size,)}
        sent = content[VECTORS]["control"].numpy()
        assert not any(np.array_equal(sent, memory) for memory in _memories(tmp_path)), (
            "a device's own control is not what it uploads after its first round"
        )


def _memories(home):
    from safetensors.numpy import load_file

    return [load_file(file)["control"] for file in home.glob("*/*/*.safetensors") if file.stem != "0"]


def test_a_round_that_is_done_again_starts_from_the_same_memory(tmp_path):
    """An aggregator that went back to a checkpoint asks for a round again: the weights come out the same."""
    experiment = preset("digits").changed({**SMALL, "method": "scaffold", "rounds": 4})
    with simulate(experiment, grid=HereGrid(4, tmp_path)) as simulation:
        backend, played, kept = simulation.federation.backend, [], []
        for step in rounds(simulation.federation, simulation.start, 4):
            played.append(step)
            kept.append(list(backend.memories()))
        backend.restore(kept[2])
        again = list(rounds(simulation.federation, played[2][0], 4))
    assert torch.equal(played[3][0].w, again[-1][0].w)
    assert len(list(tmp_path.glob("0/*/*.safetensors"))) == 2


def test_a_home_goes_on_from_what_counted(tmp_path):
    def memory(value):
        return {"v": torch.full((2,), float(value))}

    folder = tmp_path / "run"
    assert Home(folder, -1).recall() == {}
    Home(folder, -1).remember(0, memory(0))
    assert Home(folder, -1).recall() == {}  # round 0 came too late: it never was
    Home(folder, -1).remember(1, memory(1))
    Home(folder, 1).remember(2, memory(2))
    assert Home(folder, 1).recall()["v"].tolist() == [1, 1]  # round 2 was dropped, or is to be done again
    assert Home(folder, 2).recall()["v"].tolist() == [2, 2]
    assert sorted(file.name for file in folder.iterdir()) == ["1.safetensors", "2.safetensors"]
    with pytest.raises(BadInput, match="round 0 is gone"):
        Home(folder, 0).recall()


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_an_update_that_did_not_count_is_not_remembered(method, tmp_path):
    """Device 3's answer to round 1 is refused: its weights from then on are those of a device that was not asked."""
    experiment = preset("digits").changed({**REAL, "method": method})
    refused, absent = HereGrid(4, tmp_path / "refused"), HereGrid(4, tmp_path / "absent")

    def gone(asked, reply):
        return Message(Error(code=5, reason="gone"), reply_to=asked)

    def refuse(round):
        refused.tamper = {3: numbers(steps=99)} if round == 1 else {}

    def leave(round):
        absent.tamper = {3: gone} if round == 1 else {}
        if round == 2:
            shutil.rmtree(tmp_path / "absent" / "3")  # nor did it work

    w, _ = play(experiment, refused, refuse)
    expected, _ = play(experiment, absent, leave)
    assert torch.equal(w, expected)


def test_dropped_work_is_not_remembered(tmp_path):
    experiment = preset("digits").changed({**REAL, "method": "scaffold", "stragglers": "drop", "deadline": 0.5})
    grid = HereGrid(4, tmp_path)
    grid.configs = {3: {"seconds-per-step": 0.1}}
    with simulate(experiment, grid=grid) as simulation:
        records = [record for _, record in rounds(simulation.federation, simulation.start, 2)]
        [(_, kept)] = simulation.federation.backend.memories()
    assert all(record.slow == [3] and 3 not in record.used for record in records)
    assert kept["flower.counted"].tolist() == [1, 1, 1, -1]


def test_a_run_of_real_devices_goes_on_only_with_them(tmp_path):
    experiment = preset("digits").changed({**SMALL, "method": "scaffold"})
    with simulate(experiment, grid=HereGrid(4, tmp_path)) as simulation:
        list(rounds(simulation.federation, simulation.start, 1))
        kept = list(simulation.federation.backend.memories())
    for backend in ("serial", "pool"):
        with (
            simulate(experiment.changed({"backend": backend})) as simulation,
            pytest.raises(BadInput, match="on the nodes of a SuperLink"),
        ):
            simulation.federation.backend.restore(kept)


def numbers(**changes):
    def tamper(asked, reply):
        told = {**reply.content[NUMBERS], **changes}
        told = {name: value for name, value in told.items() if value is not None}
        content = RecordDict({VECTORS: reply.content[VECTORS], NUMBERS: MetricRecord(told)})
        return Message(content, reply_to=asked)

    return tamper


def vectors(change):
    def tamper(asked, reply):
        sent = {name: array.numpy().copy() for name, array in reply.content[VECTORS].items()}
        record = ArrayRecord({name: Array(vector) for name, vector in change(sent).items()})
        return Message(RecordDict({VECTORS: record, NUMBERS: reply.content[NUMBERS]}), reply_to=asked)

    return tamper


def one(value):
    def change(sent):
        sent["delta"][7] = value
        return sent

    return vectors(change)


def lying(data, stype="numpy.ndarray"):
    """Bytes that are not what they are said to be."""

    def tamper(asked, reply):
        delta = reply.content[VECTORS]["delta"]
        forged = Array(dtype="float32", shape=tuple(delta.shape), stype=stype, data=data(delta))
        content = RecordDict({VECTORS: ArrayRecord({"delta": forged}), NUMBERS: reply.content[NUMBERS]})
        return Message(content, reply_to=asked)

    return tamper


def archive(array):
    """An array in a zip, uncompressed: some hundred bytes more than the array."""
    file = io.BytesIO()
    np.savez(file, delta=array)
    return file.getvalue()


WRONG = {
    "not a number": (one(math.nan), "delta holds what is not a number"),
    "infinite": (one(math.inf), "delta holds what is not a number"),
    "too short": (vectors(lambda sent: {"delta": sent["delta"][:-1]}), "and the model"),
    "too long": (vectors(lambda sent: {"delta": np.append(sent["delta"], 0).astype(np.float32)}), "and the model"),
    "another shape": (vectors(lambda sent: {"delta": sent["delta"][None]}), "1 x"),
    "double": (vectors(lambda sent: {"delta": sent["delta"].astype(np.float64)}), "of float64"),
    "lying": (lying(lambda array: array.data[:200]), "not what it is said to be"),
    "a zip": (lying(lambda array: b"PK\x03\x04" + array.data[4:]), "cannot be read"),
    "a whole archive": (lying(lambda array: archive(array.numpy())), "not what it is said to be"),
    "another header": (lying(lambda array: array.data.replace(b"<f4", b"<i4")), "not what it is said to be"),
    "an unknown kind": (lying(lambda array: array.data, stype="pickle"), "not what it is said to be"),
    "another vector": (vectors(lambda sent: {**sent, "images": sent["delta"]}), "it sent delta, images"),
    "no vector": (vectors(lambda sent: {}), "it sent nothing"),
    "more steps": (numbers(steps=11), "it claims 11 steps, and was asked for 10"),
    "half a step": (numbers(steps=2.5), "it says steps 2.5"),
    "minus a step": (numbers(steps=-1), "it says steps -1"),
    "fewer asked": (numbers(steps_asked=3), "it answers steps_asked 3"),
    "wrong round": (numbers(round=7), "it answers round 7, and was asked for 0"),
    "wrong device": (numbers(device=2), "it answers device 2, and was asked for 1"),
    "examples": (numbers(examples=math.inf), "it says examples inf"),
    "no examples": (numbers(examples=0), "it says examples 0"),
    "all examples": (numbers(examples=1e300), "it says examples 1e+300"),
    "one number more": (numbers(label=3), "it is not made as agreed"),
    "one number less": (numbers(seconds=None), "it is not made as agreed"),
    "something else": (lambda asked, reply: Message(RecordDict({}), reply_to=asked), "it is not made as agreed"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_no_bad_answer_reaches_the_model(wrong, tmp_path):
    tamper, reason = WRONG[wrong]
    experiment = preset("digits").changed({**REAL, "rounds": 1, "averaging": "examples"})
    good, bad, without = (HereGrid(4, tmp_path / name) for name in ("good", "bad", "without"))
    bad.tamper[1] = tamper
    without.tamper[1] = lambda asked, reply: Message(Error(code=5, reason="gone"), reply_to=asked)
    w, [record] = play(experiment, bad)
    expected, _ = play(experiment, without)
    whole, _ = play(experiment, good)
    assert torch.equal(w, expected)
    assert not torch.equal(w, whole)
    assert list(record.refused) == [1]
    assert reason in record.refused[1]
    assert record.absent == [1]
    assert 1 not in record.used


@given(st.data())
def test_an_answer_with_anything_changed_is_refused_or_the_same(data):
    task = Task(3, 1, torch.zeros(5), steps=4, steps_asked=4, lr=0.1, momentum=0.0, seed=0, shared={})
    update = Update(1, torch.ones(5), 10, 4, 4, 0.5, {}, 0.1, 0.0)
    content = update_content(update, 3, 0.1)
    name = data.draw(st.sampled_from(TOLD))
    value = data.draw(st.one_of(st.integers(-(2**40), 2**40), st.floats(), st.lists(st.floats(), max_size=2)))
    content[NUMBERS][name] = value
    try:
        found = update_of(content, task, ())
    except Refused:
        return
    assert (found.device, found.steps_asked, found.lr) == (1, 4, 0.1)
    assert 0 <= found.steps <= 4
    assert found.examples >= 0


def test_a_task_survives_its_journey():
    task = Task(3, 1, torch.rand(5), 2, 4, 0.1, 0.9, 2**40, {"control": torch.rand(5)}, audit=True, seconds=2.5)
    content = task_content(task, MetricRecord())  # any record will do as a set-up
    back = task_of(Message(content, dst_node_id=1, message_type="train"))
    assert torch.equal(back.w, task.w)
    assert torch.equal(back.shared["control"], task.shared["control"])
    assert replace(back, w=task.w, shared={}) == replace(task, shared={})


def test_a_late_answer_is_counted_and_not_mixed_in(tmp_path):
    experiment = preset("digits").changed({**REAL, "deadline": 2.0})
    late, never = HereGrid(4, tmp_path / "late"), HereGrid(4, tmp_path / "never")

    def slow_in_round_one(round):
        late.silent = {2} if round == 1 else set()

    def absent_in_round_one(round):
        gone = {2: lambda asked, reply: Message(Error(code=5, reason="gone"), reply_to=asked)}
        never.tamper = gone if round == 1 else {}

    w, records = play(experiment, late, slow_in_round_one)
    expected, _ = play(experiment, never, absent_in_round_one)
    assert [record.late for record in records] == [[], [2], []]
    assert [record.absent for record in records] == [[2], [], []]
    assert [2 in record.used for record in records] == [False, True, True]
    assert torch.equal(w, expected)


def test_who_owes_an_answer_is_not_asked_again_until_it_is_too_old(tmp_path):
    experiment = preset("digits").changed({**REAL, "deadline": 0.5, "grace": 1.0, "rounds": 3})
    grid = HereGrid(4, tmp_path)

    def change(round):
        grid.silent = {2} if round <= 2 else set()
        if round == 3:
            grid._asked.clear()  # it was killed and came back: what it was asked is lost
            time.sleep(1.2)

    _, records = play(experiment, grid, change)
    assert [2 in record.devices for record in records] == [True, False, True]
    assert [record.late for record in records] == [[], [], []]
    assert records[2].absent == []


def test_an_answer_that_waited_behind_a_slow_upload_is_not_lost(tmp_path):
    """Flower reads one answer after the other. While it reads the first, the time runs out; the others came in time."""

    class Slow(HereGrid):
        def pull_messages(self, message_ids):
            names = list(message_ids)
            known = {name: self._asked[name].metadata.message_type for name in names if name in self._asked}
            training = [name for name, kind in known.items() if kind == MessageType.TRAIN]
            if len(training) == 4:
                time.sleep(2.0)
                return super().pull_messages(training[:1])
            return super().pull_messages(names)

    experiment = preset("digits").changed({**REAL, "deadline": 0.5, "grace": 1.0, "rounds": 1})
    _, [record] = play(experiment, Slow(4, tmp_path))
    assert sorted(record.used) == [0, 1, 2, 3]


def test_a_wrong_node_does_not_end_the_run_while_the_others_are_away(tmp_path):
    grid = HereGrid(5, tmp_path)
    grid.configs = {4: {"device": 99}}

    def away(round):
        if round == 1:
            grid.present = {4}
            Timer(1.0, lambda: grid.present.update(range(4))).start()

    _, records = play(preset("digits").changed({**REAL, "rounds": 2}), grid, away)
    assert len(records) == 2
    assert sorted(records[1].used) == [0, 1, 2, 3]


def test_simulated_devices_do_not_remember_dropped_work_either(tmp_path, monkeypatch):
    grid = HereGrid(4, tmp_path)
    grid.configs = {3: {"seconds-per-step": 0.1}}
    monkeypatch.setattr(nodes, "simulated_grid", lambda *_: contextlib.nullcontext(grid))
    experiment = preset("digits").changed({**REAL, "method": "scaffold", "stragglers": "drop", "deadline": 0.5})
    with simulate(experiment) as simulation:
        list(rounds(simulation.federation, simulation.start, 2))
        kept = list(simulation.federation.backend.memories())
    assert [device for device, _ in kept] == [0, 1, 2]
    assert all(memory["control"].abs().sum() > 0 for _, memory in kept)
    with simulate(experiment) as simulation:
        simulation.federation.backend.restore(kept)
        again = list(simulation.federation.backend.memories())
    assert [device for device, _ in again] == [0, 1, 2]
    assert all(torch.equal(a["control"], b["control"]) for (_, a), (_, b) in zip(kept, again, strict=True))


def test_a_device_that_forgets_goes_on(tmp_path):
    experiment = preset("digits").changed({**REAL, "method": "methods_for_tests:Forgetful", "rounds": 5})
    _, records = play(experiment, HereGrid(4, tmp_path))
    assert all(sorted(record.used) == [0, 1, 2, 3] for record in records)


def test_a_node_that_goes_and_one_that_comes(tmp_path):
    experiment = preset("digits").changed({**REAL, "rounds": 4})
    grid = HereGrid(4, tmp_path)
    grid.present = {0, 1, 2}

    def change(round):
        grid.present = {1: {0, 1, 2}, 2: {0, 1, 2, 3}, 3: {0, 3}, 4: {0, 1, 2, 3}}.get(round, grid.present)

    _, records = play(experiment, grid, change)
    assert [sorted(record.devices) for record in records] == [[0, 1, 2], [0, 1, 2, 3], [0, 3], [0, 1, 2, 3]]
    assert [record.note for record in records] == [
        "1 of 4 devices are not connected",
        None,
        "2 of 4 devices are not connected",
        None,
    ]


def test_nobody_takes_another_devices_place(tmp_path):
    experiment = preset("digits").changed({**REAL, "rounds": 1})
    grid = HereGrid(6, tmp_path)
    grid.configs = {4: {"device": 0}, 5: {"device": 99}}
    _, [record] = play(experiment, grid)
    assert sorted(record.used) == [0, 1, 2, 3]


def test_a_device_stops_when_its_time_is_up(tmp_path):
    experiment = preset("digits").changed({**REAL, "deadline": 0.5, "epochs": 50, "rounds": 2})
    grid = HereGrid(4, tmp_path)
    grid.configs = {3: {"seconds-per-step": 0.1}}
    _, records = play(experiment, grid)
    for record in records:
        done = dict(zip(record.devices, record.steps, strict=True))
        assert 1 <= done[3] <= 5
        assert 3 in record.slow
        assert 3 in record.used
        assert done[0] > done[3]
        assert record.seconds == record.simulated_seconds


def test_a_device_without_time_for_a_step_is_left_out(tmp_path):
    experiment = preset("digits").changed({**REAL, "method": "scaffold", "deadline": 0.2, "rounds": 2, "grace": 5.0})
    grid = HereGrid(4, tmp_path)
    grid.configs = {3: {"seconds-per-step": 10.0}}
    _, records = play(experiment, grid)
    assert all(record.absent == [3] for record in records)
    assert not list(tmp_path.glob("3/*/*.safetensors"))  # it has done nothing to remember


def test_when_every_device_fails_the_run_says_why(tmp_path):
    def broken(_):
        raise OSError("the disk is on fire")

    app = client_app(lambda: torch.nn.Linear(1, 1), broken)
    with pytest.raises(NodesFailed, match="every node failed: the disk is on fire"):
        play(preset("digits").changed(REAL), HereGrid(4, tmp_path, app))


def test_a_model_of_ones_own_that_cannot_be_averaged_is_refused_at_both_ends(tmp_path):
    def batch_norm():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))

    def data(*_):
        return torch.rand(20, 1, 8, 8), torch.arange(20) % 10

    said = "has buffers that training changes"
    grid = HereGrid(4, tmp_path, client_app(batch_norm, data))
    with pytest.raises(NodesFailed, match=f"every node failed: .*{said}"):
        play(preset("digits").changed(REAL), grid)
    e = preset("digits").changed({**REAL, "dataset": "own", "model": "own"})
    with pytest.raises(BadInput, match=said), own_federation(e, grid, batch_norm, data):
        pass


def test_when_nobody_is_there_the_run_says_so(tmp_path):
    grid = HereGrid(4, tmp_path)
    grid.present = set()
    with pytest.raises(NodesFailed, match=r"no device is connected, for 0\.5 seconds"):
        play(preset("digits").changed({**REAL, "patience": 0.5}), grid)


def test_an_error_on_every_node_ends_the_run(tmp_path):
    grid = HereGrid(4, tmp_path)
    nameless = {device: {"device": "x"} for device in range(4)}
    with pytest.raises(NodesFailed, match=r"device \d failed: .*node config"):
        play(preset("digits").changed(REAL), grid, lambda round: grid.configs.update(nameless))


def test_every_fleet_has_a_headline():
    from fedlga.display import headline
    from fedlga.experiment import FLEETS

    changes = {"speeds": {"deadline": 2.0}, "trace": {"trace": "t.csv"}, "real": {"backend": "flower"}}
    for fleet in FLEETS:
        assert "devices a round" in headline(preset("digits").changed({"fleet": fleet, **changes.get(fleet, {})}))


def test_a_fleet_of_real_devices_needs_flower():
    with pytest.raises(BadInput, match="fleet: got 'real' with backend 'serial'"):
        preset("digits").changed({"fleet": "real"})
    with pytest.raises(BadInput, match="only real devices"):
        preset("digits").changed({"dataset": "own"})
    with pytest.raises(BadInput, match="audit or dropout"):
        preset("digits").changed({**REAL, "dropout": 0.1})
