"""FedBuff: an event queue by hand, its equality with rounds, staleness, and what can be computed ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federations import close, play, quadratics
from fedlga.core.fleet import Workload
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.drop import Drop
from fedlga.core.policies.keep import Keep
from fedlga.core.policies.wait import Wait
from fedlga.core.registry import create
from fedlga.core.round import run_rounds
from fedlga.core.schedules.buffered import Buffered
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.fleets.speeds import SpeedFleet

CENTRES = [(8.0, 0.0), (0.0, 8.0), (24.0, 24.0)]


def federation(schedule, seconds=(1.0, 2.0, 5.0), policy=None, asked=1, deadline=100.0, method="fedavg", **more):
    """Return devices that need so many seconds for their work. A step at rate 0.5 goes half the way to the centre."""
    given, state = quadratics(
        create("method", method),
        centres=CENTRES[: len(seconds)],
        script=[[asked] * len(seconds)],
        asked=asked,
        lr=0.5,
        policy=policy or Wait(),
    )
    speeds = tuple(asked / s for s in seconds)
    fleet = SpeedFleet(Workload(0, [asked] * len(seconds), asked, deadline), speeds=speeds)
    return replace(given, fleet=fleet, schedule=schedule, **more), state


def test_three_devices_by_hand():
    """B = 2, C = 3, a = 1; the devices take 1, 2 and 5 seconds.

    0 s: all begin at w0 = 0. 1 s: device 0 sends (4, 0). 2 s: device 1 sends (0, 4): w1 = (2, 2).
    2 s: devices 0 and 1 begin at w1. 3 s: (3, -1). 4 s: (-1, 3): w2 = w1 + (1, 1) = (3, 3).
    4 s: devices 0 and 1 begin at w2. 5 s: device 2, which was first to begin, sends (12, 12): two steps old, it counts
    a third, (4, 4). Device 0 sends (2.5, -1.5): w3 = w2 + (6.5, 2.5) / 2 = (6.25, 4.25).
    """
    f, state = federation(Buffered(buffer=2, at_work=3, staleness_power=1.0))
    after, records = play(f, state, 1)
    close(after.w, [2.0, 2.0])
    assert (after.clock, [job.device for job in after.jobs], list(after.earlier)) == (2.0, [2], [0])
    after, records = play(f, state, 2)
    close(after.w, [3.0, 3.0])
    assert after.clock == 4.0
    after, records = play(f, state, 3)
    close(after.w, [6.25, 4.25])
    assert after.clock == 5.0
    assert [r.simulated_seconds for r in records] == [2.0, 2.0, 1.0]
    assert [sorted(r.used) for r in records] == [[0, 1], [0, 1], [0, 2]]
    assert [r.staleness for r in records] == [{}, {}, {2: 2}]
    assert records[2].device_seconds == {0: 1.0, 2: 5.0}
    assert [job.device for job in after.jobs] == [1]
    # Two floats to each device that ended, two back: 8 bytes a vector.
    assert [(r.bytes_down, r.bytes_up, r.steps_wasted) for r in records] == [(16, 16, 0)] * 3


def test_fednova_counts_stale_updates_like_fedavg_where_steps_are_equal():
    f, state = federation(Buffered(buffer=2, at_work=3, staleness_power=1.0), method="fednova")
    close(play(f, state, 3)[0].w, [6.25, 4.25])


def test_examples_and_staleness_both_weigh():
    """Device 2 has three examples: of weights 3 and 1, discounted by 1/3 and 1, the sum is divided by 3 + 1."""
    given, state = quadratics(
        create("method", "fedavg"),
        centres=CENTRES,
        script=[[1] * 3],
        asked=1,
        lr=0.5,
        policy=Wait(),
        copies=[1, 1, 3],
        by_examples=True,
    )
    fleet = SpeedFleet(Workload(0, [1] * 3, 1, 100.0), speeds=(1.0, 0.5, 0.2))
    schedule = Buffered(buffer=2, at_work=3, staleness_power=1.0)
    after, _ = play(replace(given, fleet=fleet, schedule=schedule), state, 3)
    close(after.w, [3 + (3 / 3 * 12 + 2.5) / 4, 3 + (3 / 3 * 12 - 1.5) / 4])


def test_an_update_that_is_too_old_is_thrown_away():
    f, state = federation(Buffered(buffer=2, at_work=3, staleness_power=1.0, staleness_limit=1))
    after, records = play(f, state, 3)
    # Device 2 is two steps old at 5 s. Devices 0 and 1, which send (2.5, -1.5) and (-1.5, 2.5), make the step at 6 s.
    assert sorted(records[2].used) == [0, 1]
    assert (records[2].wasted, records[2].steps_wasted) == ([2], 1)
    assert after.clock == 6.0
    close(after.w, [3.5, 3.5])


def test_a_deadline_of_each_device_and_complete():
    """Of four steps in 4, 4 and 8 seconds, with 4 seconds each: device 2 has done two, and is completed."""
    f, state = federation(
        Buffered(buffer=3, at_work=3), (4.0, 4.0, 8.0), Complete(scale="linear", longest=100.0), asked=4, deadline=4.0
    )
    after, (record,) = play(f, state, 1)
    assert record.simulated_seconds == 4.0
    assert record.slow == [2]
    assert record.scales == {2: 2.0}
    # Four steps go 15/16 of the way, two go 3/4, doubled.
    close(after.w, [(7.5 + 0 + 36) / 3, (0 + 7.5 + 36) / 3])


@pytest.mark.parametrize(("policy", "used", "wasted"), [(Drop(), [0, 1], 2), (Keep(), [0, 1, 2], 0)])
def test_a_deadline_of_each_device_and_the_other_policies(policy, used, wasted):
    f, state = federation(Buffered(buffer=3, at_work=3), (4.0, 4.0, 8.0), policy, asked=4, deadline=4.0)
    after, (record,) = play(f, state, 1)
    assert sorted(record.used) == used
    assert record.steps_wasted == wasted
    assert after.clock == 4.0, "everybody has had a turn"


def test_nobody_left_to_ask_ends_the_step():
    f, state = federation(Buffered(buffer=3, at_work=3), (8.0, 8.0, 8.0), Drop(), asked=4, deadline=4.0)
    after, (record,) = play(f, state, 1)
    assert record.note == "nobody finished: the model stays as it was"
    assert (after.round, after.clock) == (1, 4.0)


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova"])
@pytest.mark.parametrize("policy", ["wait", "keep"])
def test_equal_devices_with_a_full_buffer_are_rounds_to_the_bit(method, policy):
    base = preset("digits").changed(
        {"method": method, "stragglers": policy, "rounds": 4, "fleet": "equal", "devices": 12, "cohort": 5}
    )
    ends = []
    for schedule in ("rounds", "buffered"):
        with simulate(base.changed({"schedule": schedule, "backend": "serial"})) as simulation:
            played = list(run_rounds(simulation.federation, simulation.start, 4))
        ends.append((played[-1][0].w, [(r.devices, r.used, r.simulated_seconds, r.metrics) for _, r in played]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


class Wide:
    """A backend that says it does three assignments at once, and counts what it is given."""

    parallel = 3

    def __init__(self, backend):
        self.backend, self.batches = backend, []

    def run(self, assignments):
        self.batches.append(len(assignments))
        yield from self.backend.run(assignments)

    def __getattr__(self, name):
        return getattr(self.backend, name)


SLOW = {
    "method": "fedavg",
    "stragglers": "keep",
    "fleet": "speeds",
    "deadline": 4.0,
    "speed_median": 2.0,
    "devices": 12,
    "cohort": 6,
    "schedule": "buffered",
    "backend": "serial",
    "rounds": 12,
}


@pytest.mark.parametrize("buffer", [1, 2, 5])
def test_idle_cores_compute_ahead_and_change_nothing(buffer):
    experiment = preset("digits").changed({**SLOW, "buffer": buffer, "audit": True, "stragglers": "complete"})
    with simulate(experiment) as simulation:
        f = simulation.federation
        plain = list(run_rounds(f, simulation.start, 12))
        wide = Wide(f.backend)
        ahead = list(run_rounds(replace(f, backend=wide, ahead={}), simulation.start, 12))
    assert torch.equal(plain[-1][0].w, ahead[-1][0].w)
    assert [r.train_loss for _, r in plain] == [r.train_loss for _, r in ahead]
    assert [r.audit for _, r in plain] == [r.audit for _, r in ahead]
    full = [count for count in wide.batches if count]
    assert buffer == 5 or len(full) < 12, "some steps have nothing left to compute"
    assert sum(count % 3 for count in full[:-2]) == 0, "no core was idle while others worked"


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_methods_with_memories_are_refused(method):
    with pytest.raises(BadInput, match=f"method {method} takes rounds or over-selection: "):
        Experiment(method=method, schedule="buffered")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buffer": 51}, "buffer: got 51; it takes at most the 50 devices"),
        ({"at_work": 51}, "at_work: got 51; it takes at most the 50 devices"),
        ({"sampling": "with-replacement"}, "sampling: got 'with-replacement' with schedule 'buffered'"),
        ({"batch_norm": "device"}, "batch_norm: got 'device' with schedule 'buffered'"),
    ],
)
def test_what_does_not_go_with_it_is_refused(changes, message):
    with pytest.raises(BadInput, match=message.replace("(", r"\(")):
        Experiment(schedule="buffered", **changes)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0, 7.0]), min_size=3, max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(0, 3)),
)
def test_what_always_holds(seconds, buffer, at_work, limit):
    schedule = Buffered(buffer=buffer, at_work=at_work, staleness_limit=limit)
    f, state = federation(schedule, tuple(seconds))
    started = {0: 0, 1: 0, 2: 0}
    for state, record in run_rounds(f, state, 12):  # noqa: B020
        assert len(state.jobs) <= at_work
        assert len(record.used) <= buffer
        assert set(state.earlier) == {job.round for job in state.jobs}
        assert all(job.ends >= state.clock for job in state.jobs)
        assert limit is None or all(s <= limit for s in record.staleness.values())
        assert len(record.devices) * 8 == record.bytes_down
        for device in record.devices:
            started[device] += 1
    busy = {d: count * seconds[d] for d, count in started.items()}
    assert all(spent <= state.clock + 1e-9 for spent in busy.values()), "nobody works longer than there was time"


def test_what_is_too_old_was_sent_and_is_not_kept():
    """An update that is thrown away costs its upload; one that was computed ahead for nothing is forgotten."""
    f, state = federation(Buffered(buffer=2, at_work=3, staleness_power=1.0, staleness_limit=1))
    wide = replace(f, backend=Wide(f.backend), ahead={})
    _, records = play(wide, state, 3)
    assert (records[2].bytes_down, records[2].bytes_up) == (3 * 8, 3 * 8)
    play(wide, state, 12)
    assert len(wide.ahead) <= 3
