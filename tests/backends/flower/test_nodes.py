"""Devices as Flower nodes, in this process: what they do, and which replies must never reach the model."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MessageType, MetricRecord, RecordDict

from clocks import FakeTime
from fedlga.backends.flower import nodes, replies, roster
from fedlga.backends.flower.messages import NUMBERS, REPORTED, VECTORS
from fedlga.backends.flower.nodes import NodesFailed
from fedlga.backends.flower.replies import shorten_reason
from fedlga.core.registry import names_of
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.experiments import flower_client
from fedlga.experiments.flower_client import client_app
from fedlga.experiments.flower_server import open_own_federation
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.learning import training
from fedlga.learning.task import Task
from grids import InProcessGrid, say_gone
from hard_experiment import HARD, PAIRS, run_in_memory

pytestmark = pytest.mark.slow

SMALL = {"devices": 4, "cohort": 4, "partition": "iid", "rounds": 3, "steps_per_epoch": 2, "backend": "flower"}
REAL = {**SMALL, "fleet": "real", "deadline": 60.0, "grace": 0.25}


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when the aggregator or a device sleeps."""
    fake = FakeTime()
    fake.replace_time_in(monkeypatch, nodes, roster, replies, flower_client, training)
    return fake


def play(experiment, grid, before=lambda round: None):
    """Return weights and records; `before` is called with the number of each round before it begins."""
    records = []
    with simulate(experiment, grid=grid) as simulation:
        before(1)
        state = simulation.start
        for state, record in run_rounds(simulation.federation, simulation.start, experiment.rounds):  # noqa: B007
            records.append(record)
            before(record.round + 1)
    return state.w.clone(), records


@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_nodes_give_what_serial_gives_to_the_last_bit(method, policy, tmp_path):
    experiment = preset("digits").changed({**HARD, "method": method, "stragglers": policy})
    state, _, records = run_in_memory(experiment)
    w, others = play(experiment.changed({"backend": "flower"}), InProcessGrid(8, tmp_path))
    assert torch.equal(state.w, w)
    assert [replace(record, seconds=0.0) for record in others] == records


def test_an_audit_works_through_flower_too(tmp_path):
    experiment = preset("digits").changed({**HARD, "audit": True})
    _, _, records = run_in_memory(experiment)
    _, others = play(experiment.changed({"backend": "flower"}), InProcessGrid(8, tmp_path))
    assert [record.audit for record in others] == [record.audit for record in records]


def test_the_memory_of_a_device_stays_with_it_and_only_updates_are_sent(tmp_path):
    experiment = preset("digits").changed({**SMALL, "method": "scaffold"})
    grid = InProcessGrid(4, tmp_path)
    with simulate(experiment, grid=grid) as simulation:
        *_, (state, _) = run_rounds(simulation.federation, simulation.start, 3)
        checkpoint = {device: dict(memory) for device, memory in simulation.federation.backend.memories()}
        size = len(state.w)
    assert list(checkpoint) == [0]  # the run's name, and which rounds counted
    assert sorted(checkpoint[0]) == ["flower.counted", "flower.keys", "flower.name"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]
    for content in grid.contents:
        if set(content) == {NUMBERS}:  # the reply to the query which device a node is
            assert set(content[NUMBERS]) == {"device", "examples"}
            continue
        assert set(content) == {VECTORS, NUMBERS}
        assert set(content[NUMBERS]) == set(REPORTED)
        shapes = {name: tuple(array.shape) for name, array in content[VECTORS].items()}
        assert shapes == {"delta": (size,), "control": (size,)}
        sent = content[VECTORS]["control"].numpy()
        assert not any(np.array_equal(sent, memory) for memory in _memories(tmp_path)), (
            "a device's own control is not what it uploads after its first round"
        )


def _memories(home):
    from safetensors.numpy import load_file

    return [load_file(file)["control"] for file in home.glob("*/*/*.safetensors") if file.stem != "0"]


def test_a_round_that_is_repeated_starts_from_the_same_memory(tmp_path):
    """An aggregator that went back to a checkpoint asks for a round again: the weights come out the same."""
    experiment = preset("digits").changed({**SMALL, "method": "scaffold", "rounds": 4})
    with simulate(experiment, grid=InProcessGrid(4, tmp_path)) as simulation:
        backend, rounds, kept = simulation.federation.backend, [], []
        for step in run_rounds(simulation.federation, simulation.start, 4):
            rounds.append(step)
            kept.append(list(backend.memories()))
        backend.restore(kept[2])
        again = list(run_rounds(simulation.federation, rounds[2][0], 4))
    assert torch.equal(rounds[3][0].w, again[-1][0].w)
    assert len(list(tmp_path.glob("0/*/*.safetensors"))) == 2


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_an_update_that_did_not_count_is_not_remembered(method, tmp_path):
    """Device 3's reply to round 1 is refused: from then on the weights are those of a device that was not asked."""
    experiment = preset("digits").changed({**REAL, "method": method})
    refused, absent = InProcessGrid(4, tmp_path / "refused"), InProcessGrid(4, tmp_path / "absent")

    def refuse(round):
        refused.tamper = {3: change_numbers(steps=99)} if round == 1 else {}

    def leave(round):
        absent.tamper = {3: say_gone} if round == 1 else {}
        if round == 2:
            shutil.rmtree(tmp_path / "absent" / "3")  # as if it had not worked at all

    w, _ = play(experiment, refused, refuse)
    expected, _ = play(experiment, absent, leave)
    assert torch.equal(w, expected)


def test_dropped_work_is_not_remembered(tmp_path, clock):
    experiment = preset("digits").changed({**REAL, "method": "scaffold", "stragglers": "drop", "deadline": 0.5})
    grid = InProcessGrid(4, tmp_path)
    grid.configs = {3: {"seconds-per-step": 0.125}}
    with simulate(experiment, grid=grid) as simulation:
        records = [record for _, record in run_rounds(simulation.federation, simulation.start, 2)]
        [(_, kept)] = simulation.federation.backend.memories()
    assert all(record.slow == [3] and 3 not in record.used for record in records)
    assert kept["flower.counted"].tolist() == [1, 1, 1, -1]


def test_a_run_of_real_devices_continues_only_with_them(tmp_path):
    experiment = preset("digits").changed({**SMALL, "method": "scaffold"})
    with simulate(experiment, grid=InProcessGrid(4, tmp_path)) as simulation:
        list(run_rounds(simulation.federation, simulation.start, 1))
        kept = list(simulation.federation.backend.memories())
    for backend in ("serial", "pool"):
        with (
            simulate(experiment.changed({"backend": backend})) as simulation,
            pytest.raises(BadInput, match="on the nodes of a SuperLink"),
        ):
            simulation.federation.backend.restore(kept)


def test_a_run_of_simulated_devices_does_not_continue_on_nodes(tmp_path):
    experiment = preset("digits").changed({**SMALL, "method": "scaffold"})
    with (
        simulate(experiment, grid=InProcessGrid(4, tmp_path)) as simulation,
        pytest.raises(BadInput, match="are here, not on nodes"),
    ):
        simulation.federation.backend.restore([(0, {"control": torch.zeros(3)})])


def change_numbers(**changes):
    def tamper(asked, reply):
        numbers = {**reply.content[NUMBERS], **changes}
        numbers = {name: value for name, value in numbers.items() if value is not None}
        content = RecordDict({VECTORS: reply.content[VECTORS], NUMBERS: MetricRecord(numbers)})
        return Message(content, reply_to=asked)

    return tamper


def change_vectors(change):
    def tamper(asked, reply):
        sent = {name: array.numpy().copy() for name, array in reply.content[VECTORS].items()}
        record = ArrayRecord({name: Array(vector) for name, vector in change(sent).items()})
        return Message(RecordDict({VECTORS: record, NUMBERS: reply.content[NUMBERS]}), reply_to=asked)

    return tamper


def change_one(value):
    def change(sent):
        sent["delta"][7] = value
        return sent

    return change_vectors(change)


def forge(data, stype="numpy.ndarray"):
    """Send bytes that are not what their header says."""

    def tamper(asked, reply):
        delta = reply.content[VECTORS]["delta"]
        forged = Array(dtype="float32", shape=tuple(delta.shape), stype=stype, data=data(delta))
        content = RecordDict({VECTORS: ArrayRecord({"delta": forged}), NUMBERS: reply.content[NUMBERS]})
        return Message(content, reply_to=asked)

    return tamper


def resize(side):
    """Send an array whose header says that it is this long."""

    def tamper(asked, reply):
        delta = reply.content[VECTORS]["delta"]
        forged = Array(dtype="float32", shape=(side,), stype=delta.stype, data=delta.data)
        content = RecordDict({VECTORS: ArrayRecord({"delta": forged}), NUMBERS: reply.content[NUMBERS]})
        return Message(content, reply_to=asked)

    return tamper


def archive(array):
    """Return an array in a zip, uncompressed: some hundred bytes more than the array."""
    file = io.BytesIO()
    np.savez(file, delta=array)
    return file.getvalue()


WRONG = {
    "not a number": (change_one(math.nan), "delta holds what is not a number"),
    "infinite": (change_one(math.inf), "delta holds what is not a number"),
    "too short": (change_vectors(lambda sent: {"delta": sent["delta"][:-1]}), "and the model"),
    "too long": (
        change_vectors(lambda sent: {"delta": np.append(sent["delta"], 0).astype(np.float32)}),
        "and the model",
    ),
    "another shape": (change_vectors(lambda sent: {"delta": sent["delta"][None]}), "1 x"),
    "double": (change_vectors(lambda sent: {"delta": sent["delta"].astype(np.float64)}), "of float64"),
    "cut off": (forge(lambda array: array.data[:200]), "not what it is said to be"),
    "a zip": (forge(lambda array: b"PK\x03\x04" + array.data[4:]), "cannot be read"),
    "a whole archive": (forge(lambda array: archive(array.numpy())), "not what it is said to be"),
    "another header": (forge(lambda array: array.data.replace(b"<f4", b"<i4")), "not what it is said to be"),
    "a side of five thousand digits": (resize(10**5000), "it cannot be read (ValueError)"),
    "an unknown kind": (forge(lambda array: array.data, stype="pickle"), "not what it is said to be"),
    "another vector": (change_vectors(lambda sent: {**sent, "images": sent["delta"]}), "it sent delta, images"),
    "no vector": (change_vectors(lambda sent: {}), "it sent nothing"),
    "more steps": (change_numbers(steps=11), "it claims 11 steps, and was asked for 10"),
    "half a step": (change_numbers(steps=2.5), "it says steps 2.5"),
    "minus a step": (change_numbers(steps=-1), "it says steps -1"),
    "fewer asked": (change_numbers(steps_asked=3), "it replies to steps_asked 3"),
    "wrong round": (change_numbers(round=7), "it replies to round 7, and was asked for 0"),
    "wrong device": (change_numbers(device=2), "it replies to device 2, and was asked for 1"),
    "examples": (change_numbers(examples=math.inf), "it says examples inf"),
    "no examples": (change_numbers(examples=0), "it says examples 0"),
    "all examples": (change_numbers(examples=1e300), "it says examples 1e+300"),
    "one number more": (change_numbers(label=3), "it does not have the agreed form"),
    "one number less": (change_numbers(seconds=None), "it does not have the agreed form"),
    "something else": (
        lambda asked, reply: Message(RecordDict({}), reply_to=asked),
        "it does not have the agreed form",
    ),
}


ONE_ROUND = preset("digits").changed({**REAL, "rounds": 1, "averaging": "examples"})


@pytest.fixture(scope="module")
def with_and_without(tmp_path_factory):
    """Return the weights after a round with four good devices, and after one that device 1 left."""
    folder = tmp_path_factory.mktemp("nodes")
    good, without = (InProcessGrid(4, folder / name) for name in ("good", "without"))
    without.tamper[1] = say_gone
    return play(ONE_ROUND, good)[0], play(ONE_ROUND, without)[0]


@pytest.mark.parametrize("wrong", WRONG)
def test_no_wrong_reply_reaches_the_model(wrong, with_and_without, tmp_path):
    tamper, reason = WRONG[wrong]
    bad = InProcessGrid(4, tmp_path)
    bad.tamper[1] = tamper
    w, [record] = play(ONE_ROUND, bad)
    whole, expected = with_and_without
    assert torch.equal(w, expected)
    assert not torch.equal(w, whole)
    assert list(record.refused) == [1]
    assert reason in record.refused[1]
    assert record.absent == [1]
    assert 1 not in record.used


@pytest.mark.parametrize("method", names_of("method"))
def test_huge_finite_numbers_never_reach_the_weights_of_any_method(method, tmp_path):
    def enlarge(sent):
        return {name: np.full_like(vector, 3e38) for name, vector in sent.items()}

    bad = InProcessGrid(4, tmp_path)
    bad.tamper[1] = change_vectors(enlarge)
    w, [record] = play(ONE_ROUND.changed({"method": method}), bad)
    assert sorted(record.used) == [0, 2, 3]
    assert "times as long as usual" in record.refused[1]
    assert bool(torch.isfinite(w).all())
    assert float(w.abs().max()) < 10


def test_a_late_reply_is_counted_and_not_used(tmp_path, clock):
    experiment = preset("digits").changed({**REAL, "deadline": 2.0})
    late, never = InProcessGrid(4, tmp_path / "late"), InProcessGrid(4, tmp_path / "never")

    def slow_in_round_one(round):
        late.silent = {2} if round == 1 else set()

    def absent_in_round_one(round):
        never.tamper = {2: say_gone} if round == 1 else {}

    w, records = play(experiment, late, slow_in_round_one)
    expected, _ = play(experiment, never, absent_in_round_one)
    assert [record.late for record in records] == [[], [2], []]
    assert [record.absent for record in records] == [[2], [], []]
    assert [2 in record.used for record in records] == [False, True, True]
    assert torch.equal(w, expected)


def test_a_device_that_owes_a_reply_is_not_asked_again_until_the_reply_is_too_old(tmp_path, clock):
    experiment = preset("digits").changed({**REAL, "deadline": 0.5, "grace": 1.0, "rounds": 3})
    grid = InProcessGrid(4, tmp_path)

    def change(round):
        grid.silent = {2} if round <= 2 else set()
        if round == 3:
            grid.lose_messages()  # it was killed and started again
            clock.sleep(1.25)

    _, records = play(experiment, grid, change)
    assert [2 in record.devices for record in records] == [True, False, True]
    assert [record.late for record in records] == [[], [], []]
    assert records[2].absent == []


def test_a_reply_that_waited_behind_a_slow_upload_is_not_lost(tmp_path, clock):
    """Flower reads one reply after the other. While it reads the first, the time ends; the others came in time."""

    class SlowGrid(InProcessGrid):
        slept = False

        def pull_messages(self, message_ids):
            names = list(message_ids)
            if not self.slept and any(self.kind_of(name) == MessageType.TRAIN for name in names):
                self.slept = True
                clock.sleep(2.0)
            return super().pull_messages(names)

    experiment = preset("digits").changed({**REAL, "deadline": 0.5, "grace": 1.0, "rounds": 1})
    _, [record] = play(experiment, SlowGrid(4, tmp_path))
    assert sorted(record.used) == [0, 1, 2, 3]


def test_a_wrong_node_does_not_end_the_run_while_the_others_are_away(tmp_path, clock):
    grid = InProcessGrid(5, tmp_path)
    grid.configs = {4: {"device": 99}}

    def leave(round):
        if round == 1:
            grid.present = {4}
            clock.after(1.0, lambda: grid.present.update(range(4)))

    _, records = play(preset("digits").changed({**REAL, "rounds": 2}), grid, leave)
    assert len(records) == 2
    assert sorted(records[1].used) == [0, 1, 2, 3]


def test_simulated_devices_do_not_remember_dropped_work_either(tmp_path, monkeypatch, clock):
    grid = InProcessGrid(4, tmp_path, flower_client.simulated_app)
    grid.configs = {3: {"seconds-per-step": 0.125}}
    monkeypatch.setattr(flower_client, "simulate_grid", lambda *_: contextlib.nullcontext(grid))
    experiment = preset("digits").changed({**REAL, "method": "scaffold", "stragglers": "drop", "deadline": 0.5})
    with simulate(experiment) as simulation:
        list(run_rounds(simulation.federation, simulation.start, 2))
        kept = list(simulation.federation.backend.memories())
    assert [device for device, _ in kept] == [0, 1, 2]
    assert all(memory["control"].abs().sum() > 0 for _, memory in kept)
    with simulate(experiment) as simulation:
        simulation.federation.backend.restore(kept)
        again = list(simulation.federation.backend.memories())
    assert [device for device, _ in again] == [0, 1, 2]
    assert all(torch.equal(a["control"], b["control"]) for (_, a), (_, b) in zip(kept, again, strict=True))


def test_a_device_that_forgets_continues(tmp_path):
    experiment = preset("digits").changed({**REAL, "method": "methods_for_tests:Forgetful", "rounds": 5})
    _, records = play(experiment, InProcessGrid(4, tmp_path, modules="methods_for_tests"))
    assert all(sorted(record.used) == [0, 1, 2, 3] for record in records)


def test_a_node_that_leaves_and_one_that_comes(tmp_path, clock):
    experiment = preset("digits").changed({**REAL, "rounds": 4})
    grid = InProcessGrid(4, tmp_path)
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


def test_a_node_cannot_take_the_place_of_another_device(tmp_path):
    experiment = preset("digits").changed({**REAL, "rounds": 1})
    grid = InProcessGrid(6, tmp_path)
    grid.configs = {4: {"device": 0}, 5: {"device": 99}}
    _, [record] = play(experiment, grid)
    assert sorted(record.used) == [0, 1, 2, 3]


def test_a_number_stays_with_the_key_that_came_with_it_first(tmp_path, clock):
    """Device 0 goes away; node 4, with another key, says it is device 0, and is turned away until the end."""
    grid = InProcessGrid(5, tmp_path)
    grid.configs = {4: {"device": 0}}
    grid.present = {0, 1, 2, 3}
    grid.keys = {device: b"key %d" % device for device in range(5)}

    def leave(round):
        grid.present = {0, 1, 2, 3} if round == 1 else {1, 2, 3, 4}

    _, records = play(preset("digits").changed({**REAL, "rounds": 3}), grid, leave)
    assert [sorted(record.used) for record in records] == [[0, 1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert [list(record.duplicates) for record in records] == [[], [0], []]
    assert records[1].duplicates[0] == f"node {grid.node(4)} says it is device 0, which belongs to another key"
    assert records[1].refused == {}


def test_without_keys_a_number_is_of_whoever_has_it(tmp_path, clock):
    grid = InProcessGrid(5, tmp_path)
    grid.configs = {4: {"device": 0}}
    grid.present = {0, 1, 2, 3}
    grid.keys = {device: b"key %d" % device for device in range(5)}

    def leave(round):
        grid.present = {0, 1, 2, 3} if round == 1 else {1, 2, 3, 4}

    _, records = play(preset("digits").changed({**REAL, "rounds": 2, "bind_devices": False}), grid, leave)
    assert [sorted(record.used) for record in records] == [[0, 1, 2, 3], [0, 1, 2, 3]]


def test_the_name_of_its_enrolment_says_which_device_a_node_is(tmp_path, clock):
    """Node 4 comes first, and is enrolled as another device; so is node 0, and has a new key in the second round."""
    grid = InProcessGrid(5, tmp_path)
    grid.configs = {4: {"device": 0}}
    grid.present = {1, 2, 3, 4}
    grid.keys = {device: b"key %d" % device for device in range(5)}
    grid.names = {device: f"device-{device}" for device in range(5)}

    def come(round):
        grid.present = {1, 2, 3, 4} if round == 1 else {0, 1, 2, 3, 4}
        grid.keys[0] = b"a new key"

    _, records = play(preset("digits").changed({**REAL, "rounds": 2}), grid, come)
    assert [sorted(record.used) for record in records] == [[1, 2, 3], [0, 1, 2, 3]]
    assert records[0].duplicates[0] == f"node {grid.node(4)} says it is device 0, and was enrolled as device-4"


def test_keys_are_part_of_a_checkpoint(tmp_path, clock):
    """The run goes on in another process, and the first to come says that it is device 0."""
    experiment = preset("digits").changed({**REAL, "rounds": 1})
    grid = InProcessGrid(5, tmp_path)
    grid.configs = {4: {"device": 0}}
    grid.present = {0, 1, 2, 3}
    grid.keys = {device: b"key %d" % device for device in range(5)}
    with simulate(experiment, grid=grid) as simulation:
        [(state, _)] = run_rounds(simulation.federation, simulation.start, 1)
        kept = list(simulation.federation.backend.memories())
    grid.present = {1, 2, 3, 4}
    with simulate(experiment, grid=grid) as simulation:
        simulation.federation.backend.restore(kept)
        [(_, record)] = run_rounds(simulation.federation, state, 2)
    assert sorted(record.used) == [1, 2, 3]
    assert "another key" in record.duplicates[0]


def test_a_reply_that_flower_cannot_read_takes_nothing_along(tmp_path, clock):
    """As an array with an empty body does; and a reply to a message of nobody."""

    class Breaking(InProcessGrid):
        def pull_messages(self, message_ids):
            came = list(super().pull_messages(message_ids))
            for reply in came:
                if reply.metadata.src_node_id == self.node(2) and reply.metadata.message_type == "train":
                    raise ValueError("cannot reshape")
                if reply.metadata.src_node_id == self.node(3) and reply.metadata.message_type == "train":
                    reply.metadata.__dict__["_reply_to_message_id"] = "message-of-nobody"
            return came

    _, [record] = play(preset("digits").changed({**REAL, "rounds": 1, "deadline": 1.0}), Breaking(4, tmp_path))
    assert sorted(record.used) == [0, 1]
    assert record.refused == {2: "it cannot be read (ValueError)"}
    assert record.ignored == 1
    assert sorted(record.absent) == [2, 3]


def test_a_device_stops_when_its_time_is_up(tmp_path, clock):
    experiment = preset("digits").changed({**REAL, "deadline": 0.5, "epochs": 50, "rounds": 2})
    grid = InProcessGrid(4, tmp_path)
    grid.configs = {3: {"seconds-per-step": 0.125}}
    _, records = play(experiment, grid)
    for record in records:
        steps = dict(zip(record.devices, record.steps, strict=True))
        assert steps[3] == 3  # a fourth would end at 0.5 seconds
        assert 3 in record.slow
        assert 3 in record.used
        assert steps[0] == 100  # of 50 epochs of 2 steps
        assert record.seconds == record.simulated_seconds


def test_a_device_without_time_for_a_step_is_left_out(tmp_path, clock):
    experiment = preset("digits").changed({**REAL, "method": "scaffold", "deadline": 0.25, "rounds": 2, "grace": 5.0})
    grid = InProcessGrid(4, tmp_path)
    grid.configs = {3: {"seconds-per-step": 10.0}}
    _, records = play(experiment, grid)
    assert all(record.absent == [3] for record in records)
    assert not list(tmp_path.glob("3/*/*.safetensors"))  # it has done nothing to remember


def test_when_every_device_fails_the_run_says_why(tmp_path):
    def broken(_):
        raise OSError("the disk is on fire")

    app = client_app(lambda: torch.nn.Linear(1, 1), broken)
    with pytest.raises(NodesFailed, match="every node failed: the disk is on fire"):
        play(preset("digits").changed(REAL), InProcessGrid(4, tmp_path, app))


def some_images(*_):
    """Return data as a user's own function does, on a node or at the aggregator."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(20, 1, 8, 8, generator=generator), torch.arange(20) % 10


def test_an_own_model_that_cannot_be_trained_is_refused_at_both_ends(tmp_path):
    def doubles():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).double()

    reason = "has parameters of torch.float64"
    grid = InProcessGrid(4, tmp_path, client_app(doubles, some_images))
    with pytest.raises(NodesFailed, match=f"every node failed: .*{reason}"):
        play(preset("digits").changed(REAL), grid)
    e = preset("digits").changed({**REAL, "dataset": "own", "model": "own"})
    task = Task(doubles, some_images)
    with pytest.raises(BadInput, match=reason), open_own_federation(e, grid, task, only_tests=True):
        pass


def test_the_buffers_of_an_own_model_travel_and_are_averaged(tmp_path):
    """All four devices have the same 20 images, a batch of 20, and two steps of it; the mean is that of each."""

    def batch_norm():
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 10))

    grid = InProcessGrid(4, tmp_path, client_app(batch_norm, some_images))
    changes = {**REAL, "dataset": "own", "model": "own", "epochs": 1, "batch_size": 20, "rounds": 1}
    e = preset("digits").changed(changes)
    with open_own_federation(e, grid, Task(batch_norm, some_images), only_tests=True) as simulation:
        (state, record) = next(run_rounds(simulation.federation, simulation.start, 1))
    assert record.refused == {}
    assert sorted(record.used) == [0, 1, 2, 3]
    images = some_images()[0].flatten(1)
    # From 0 and 1, each of two steps moves a tenth of the way to the batch's mean and (unbiased) variance.
    mean, variance = (1 - 0.9**2) * images.mean(0), 0.9**2 + (1 - 0.9**2) * images.var(0)
    torch.testing.assert_close(state.buffers, torch.cat([mean, variance]))
    sent = [content[VECTORS] for content in grid.contents if VECTORS in content]
    assert all({"delta", "buffers"} == set(vectors) for vectors in sent)


def test_nodes_give_what_serial_gives_with_buffers_too(tmp_path):
    model = "models_for_tests:with_batch_norm"
    experiment = preset("digits").changed({**HARD, "model": model})
    state, _, records = run_in_memory(experiment)
    grid = InProcessGrid(8, tmp_path, modules="models_for_tests")
    w, others = play(experiment.changed({"backend": "flower"}), grid)
    assert state.buffers is not None
    assert torch.equal(state.w, w)
    assert [replace(record, seconds=0.0) for record in others] == records


def test_when_no_device_comes_the_run_says_so(tmp_path, clock):
    grid = InProcessGrid(4, tmp_path)
    grid.present = set()
    with pytest.raises(NodesFailed, match=r"no device has been connected for 0\.5 seconds"):
        play(preset("digits").changed({**REAL, "patience": 0.5}), grid)


def test_an_error_on_every_node_ends_the_run(tmp_path):
    grid = InProcessGrid(4, tmp_path)
    without_number = {device: {"device": "x"} for device in range(4)}
    with pytest.raises(NodesFailed, match=r"device \d failed: .*node config"):
        play(preset("digits").changed(REAL), grid, lambda round: grid.configs.update(without_number))


def test_a_few_that_fail_when_they_are_selected_alone_do_not_end_the_run(tmp_path):
    """One device is selected at a time, and one of five fails whenever it is; it rests after three times."""
    grid = InProcessGrid(5, tmp_path)
    grid.tamper[1] = lambda asked, reply: Message(Error(code=2, reason="broken on purpose"), reply_to=asked)
    changes = {"devices": 5, "cohort": 1, "rounds": 12, "quarantine_after": 1}
    _, records = play(preset("digits").changed({**REAL, **changes}), grid)
    alone = [record for record in records if record.devices == [1]]
    assert alone
    assert all(record.refused == {1: "it failed: broken on purpose"} and not record.used for record in alone)
    assert len(records) == 12
    assert all(record.used for record in records if record.devices != [1])


def test_a_wrong_node_that_comes_before_the_others_does_not_end_the_run(tmp_path, clock):
    grid = InProcessGrid(5, tmp_path)
    grid.configs = {4: {"device": 99}}
    grid.present = {4}
    clock.after(1.0, lambda: grid.present.update(range(4)))
    _, [record] = play(preset("digits").changed({**REAL, "rounds": 1, "grace": 5.0}), grid)
    assert sorted(record.used) == [0, 1, 2, 3]


def test_a_failure_is_told_in_one_line():
    """The last line of a trace, without Flower's and Ray's forms."""
    assert shorten_reason("trace\nMessage: <class 'OSError'>:<'the disk is full'>") == "the disk is full"
    assert shorten_reason(None) == "no reason given"


def test_every_fleet_has_a_description():
    from fedlga.cli.terminal import describe_experiment

    changes = {"speeds": {"deadline": 2.0}, "trace": {"trace": "t.csv"}, "real": {"backend": "flower"}}
    changes["population"] = {"deadline": 2.0}
    for fleet in names_of("fleet"):
        experiment = preset("digits").changed({"fleet": fleet, **changes.get(fleet, {})})
        assert "devices a round" in describe_experiment(experiment)


def test_a_fleet_of_real_devices_needs_flower():
    with pytest.raises(BadInput, match="fleet: got 'real' with backend 'serial'"):
        preset("digits").changed({"fleet": "real"})
    with pytest.raises(BadInput, match="only tasks and real devices have their own data"):
        preset("digits").changed({"dataset": "own"})
    with pytest.raises(BadInput, match="fleet: got 'real' with dropout"):
        preset("digits").changed({**REAL, "dropout": 0.1})


# Over-selection on real devices

FIRST = {**REAL, "method": "fedavg", "cohort": 3, "schedule": "over-selection", "factor": 1.3}


@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_the_first_to_report_count_and_nobody_waits_for_the_others(tmp_path, clock, policy):
    grid = InProcessGrid(4, tmp_path)
    experiment = preset("digits").changed({**FIRST, "stragglers": policy, "rounds": 2, "patience": 1000.0})
    began = clock.now
    _, records = play(experiment, grid, lambda round: grid.silent.add(1))
    assert sorted(records[0].devices) == [0, 1, 2, 3]
    assert sorted(records[0].used) == [0, 2, 3]
    assert clock.now < began + 1, "nobody waited for device 1"
    assert sorted(records[1].devices) == [0, 2, 3], "device 1 still owes a reply"


def test_one_too_many_is_not_used_and_said_to_be_late(tmp_path):
    _, records = play(preset("digits").changed({**FIRST, "stragglers": "wait"}), InProcessGrid(4, tmp_path))
    for record in records:
        assert len(record.used) == 3
        assert len(record.devices) == 4
        assert sorted([*record.used, *record.late]) == [0, 1, 2, 3]
        assert record.absent == record.late


def test_an_answer_after_enough_had_come_is_late_in_the_next_round(tmp_path):
    grid = InProcessGrid(4, tmp_path)

    def before(round):
        grid.silent = {1} if round == 1 else set()

    _, records = play(preset("digits").changed({**FIRST, "stragglers": "wait"}), grid, before)
    assert sorted(records[0].used) == [0, 2, 3]
    assert 1 in records[1].late
    assert len(records[1].used) == 3, "what it sent late is not among them"


def test_memories_of_devices_that_came_too_late_do_not_count(tmp_path):
    """With Scaffold, what a device remembers of a round that did not count is forgotten: sums stay right."""
    experiment = preset("digits").changed({**FIRST, "method": "scaffold", "stragglers": "wait", "rounds": 4})
    with simulate(experiment, grid=InProcessGrid(4, tmp_path)) as simulation:
        f = simulation.federation
        played = list(run_rounds(f, simulation.start, 4))
        (_, memory), *_ = f.backend.memories()
    for device in range(4):
        last = max((r.round - 1 for _, r in played if device in r.used), default=-1)
        assert int(memory["flower.counted"][device]) == last


# A buffer of real devices

BUFFERED = {**REAL, "method": "fedavg", "stragglers": "wait", "schedule": "buffered", "buffer": 2, "at_work": 3}


def test_a_device_that_takes_long_counts_with_its_staleness(tmp_path):
    """Device d works through two steps of the others, and its update goes into the third."""
    grid = InProcessGrid(4, tmp_path)
    slow: list[int] = []

    def before(round):
        if round == 3:
            grid.silent.clear()

    experiment = preset("digits").changed({**BUFFERED, "rounds": 4, "seed": 3})
    with simulate(experiment, grid=grid) as simulation:
        f, state, records = simulation.federation, simulation.start, []
        slow.append(f.schedule.plan(f, state).ended[0].device)
        grid.silent = set(slow)
        for state, record in run_rounds(f, state, 4):  # noqa: B020
            records.append(record)
            before(record.round + 1)
            assert len(state.jobs) <= 3
            if record.round < 3:
                assert slow[0] in [job.device for job in state.jobs]
                assert state.earlier[0].w is simulation.start.w
    assert all(len(record.used) == 2 for record in records)
    assert slow[0] not in [*records[0].used, *records[1].used]
    assert next(record.staleness.get(slow[0]) for record in records if slow[0] in record.used) == 2


def test_equal_nodes_with_a_full_buffer_are_rounds_to_the_bit(tmp_path):
    base = {**REAL, "method": "fedavg", "stragglers": "wait"}
    rounds, buffered = (
        play(preset("digits").changed({**base, "schedule": schedule}), InProcessGrid(4, tmp_path / schedule))
        for schedule in ("rounds", "buffered")
    )
    assert torch.equal(rounds[0], buffered[0])
    assert [r.used for r in rounds[1]] == [r.used for r in buffered[1]]


def test_a_place_is_taken_again_in_the_middle_of_a_step(tmp_path):
    """Two of four are at work, and four updates make a step: the other two start when the first two have answered."""
    experiment = preset("digits").changed({**BUFFERED, "at_work": 2, "buffer": 4, "rounds": 3})
    _, records = play(experiment, InProcessGrid(4, tmp_path))
    assert [sorted(record.used) for record in records] == [[0, 1, 2, 3]] * 3
    assert all(record.staleness == {} for record in records)


def test_a_place_of_a_node_that_fails_is_taken_by_another(tmp_path):
    grid = InProcessGrid(4, tmp_path)
    grid.tamper[0] = say_gone
    experiment = preset("digits").changed({**BUFFERED, "at_work": 2, "buffer": 3, "rounds": 2})
    _, records = play(experiment, grid)
    assert [sorted(record.used) for record in records] == [[1, 2, 3]] * 2


def test_updates_that_have_come_are_not_kept_waiting_by_nodes_that_left(tmp_path, clock):
    """Step 1 takes one of three updates; then its device leaves. The other two have come, and nobody is idle."""
    grid, left = InProcessGrid(3, tmp_path), set()
    changes = {"devices": 3, "cohort": 3, "buffer": 1, "at_work": 3, "patience": 1000.0}
    began, records = clock.now, []
    with simulate(preset("digits").changed({**BUFFERED, **changes}), grid=grid) as simulation:
        for _, record in run_rounds(simulation.federation, simulation.start, 3):
            records.append(record)
            left |= set(record.used)
            grid.present = {0, 1, 2} - left
    assert [len(record.used) for record in records] == [1, 1, 1]
    assert clock.now < began + 10


def test_an_update_that_is_too_old_is_thrown_away_and_counted(tmp_path):
    """Device 3 is silent in the first four steps; its update would be four steps old."""
    grid = InProcessGrid(4, tmp_path)
    changes = {"buffer": 1, "at_work": 4, "rounds": 9, "staleness_limit": 1}

    def before(round):
        grid.silent = {3} if round < 5 else set()

    _, records = play(preset("digits").changed({**BUFFERED, **changes}), grid, before)
    assert all(len(record.used) == 1 for record in records)
    assert all(staleness <= 1 for record in records for staleness in record.staleness.values())
    thrown = [record for record in records if 3 in record.wasted]
    assert len(thrown) == 1
    assert thrown[0].steps_wasted >= thrown[0].steps[thrown[0].devices.index(3)] > 0
    assert thrown[0].bytes_up == 2 * thrown[0].bytes_down // len(thrown[0].devices), "the one used, and the one too old"


def test_nodes_that_come_in_the_middle_of_a_step_take_free_places(tmp_path, clock):
    grid, pull, began = InProcessGrid(4, tmp_path), None, clock.now
    grid.present = {0}
    pull = grid.pull_messages

    def pull_later(names):
        if clock.now > began + 10:
            grid.present = {0, 1, 2, 3}
        return pull(names)

    grid.pull_messages = pull_later
    experiment = preset("digits").changed({**BUFFERED, "rounds": 1, "patience": 1000.0})
    _, (record,) = play(experiment, grid, lambda round: grid.silent.add(0))
    assert len(record.used) == 2
    assert clock.now < began + 30


def test_places_of_nodes_that_were_gone_when_they_were_asked_are_taken(tmp_path):
    grid = InProcessGrid(4, tmp_path)
    push = grid.push_messages

    def push_to_some(messages):
        messages = list(messages)
        gone = {grid.node(0), grid.node(1)}
        names = push(messages)
        pairs = zip(messages, names, strict=True)
        return [None if m.metadata.message_type == "train" and m.metadata.dst_node_id in gone else n for m, n in pairs]

    grid.push_messages = push_to_some
    _, records = play(preset("digits").changed({**BUFFERED, "at_work": 2, "rounds": 3}), grid)
    assert [sorted(record.used) for record in records] == [[2, 3]] * 3


def test_when_all_that_were_asked_fail_the_run_ends(tmp_path):
    """Device 3 has left before that, and was not asked."""
    grid = InProcessGrid(4, tmp_path)

    def before(round):
        if round == 2:
            grid.present = {0, 1, 2}
            grid.configs = {device: {"device": "x"} for device in range(4)}

    with pytest.raises(NodesFailed, match=r"device \d failed: .*node config"):
        play(preset("digits").changed({**BUFFERED, "rounds": 6}), grid, before)


def test_a_reply_that_comes_twice_counts_once(tmp_path):
    grid = InProcessGrid(4, tmp_path)
    pull = grid.pull_messages
    grid.pull_messages = lambda names: [reply for reply in pull(names) for _ in range(2)]
    _, records = play(preset("digits").changed({**BUFFERED, "rounds": 2}), grid)
    assert all(len(record.used) == len(set(record.used)) == 2 for record in records)


def test_a_deadline_and_complete_in_a_buffer_of_real_devices(tmp_path):
    experiment = preset("digits").changed({**BUFFERED, "stragglers": "complete", "buffer": 3, "rounds": 3})
    _, records = play(experiment, InProcessGrid(4, tmp_path))
    assert all(len(record.used) == 3 for record in records)


def test_a_node_that_is_gone_is_not_waited_for(tmp_path, clock):
    grid = InProcessGrid(4, tmp_path)
    grid.tamper[0] = say_gone
    experiment = preset("digits").changed({**BUFFERED, "rounds": 4, "patience": 1000.0})
    began = clock.now
    _, records = play(experiment, grid)
    assert clock.now < began + 10
    assert all(0 not in record.used for record in records)
    assert all(record.used for record in records)


def test_nobody_answers_and_the_step_is_empty(tmp_path, clock):
    grid = InProcessGrid(4, tmp_path)
    experiment = preset("digits").changed({**BUFFERED, "rounds": 1, "patience": 50.0})
    _, (record,) = play(experiment, grid, lambda round: grid.silent.update(range(4)))
    assert record.used == []
    assert record.note == "nobody reported: the model stays as it was"


def test_a_buffer_goes_on_after_the_aggregator_was_killed(tmp_path):
    """Who was at work for the old one is asked again: no update of an old message can be mixed up with a new one."""
    from fedlga.experiments.run import load_for_resume, run_and_record

    grid = InProcessGrid(4, tmp_path / "nodes")
    experiment = preset("digits").changed({**BUFFERED, "rounds": 5})
    running = run_and_record(experiment, tmp_path / "r", grid=grid)
    for record in running:
        grid.silent = {3}
        if record.round == 3:
            break
    running.close()
    grid.lose_messages()
    grid.silent = set()
    again = load_for_resume(tmp_path / "r", {})
    rest = list(run_and_record(again, tmp_path / "r", resume=True, grid=grid))
    assert [record.round for record in rest] == [4, 5]
    assert all(len(record.used) == 2 for record in rest)
    assert all(s <= 1 for record in rest for s in record.staleness.values()), "nobody began before the restart"
