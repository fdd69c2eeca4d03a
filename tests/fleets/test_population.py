"""Phones: their speed, connection and hours, by hand and as shares of many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.core.fleet import Workload
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.fleets.population import DAY, PopulationFleet, read_figures, read_windows

MEGABYTE = 1_000_000


def fleet(devices=1, deadline=10.0, steps=10, size=MEGABYTE, **settings) -> PopulationFleet:
    return PopulationFleet(Workload(0, [steps] * devices, 5, deadline, bytes_down=size, bytes_up=size), **settings)


def write(folder, text, name="file.csv") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_round_trip_by_hand():
    """A megabyte is 8 megabits: 2 s down at 4, 4 s up at 2. Ten steps at two a second take 5 s: 11 in all."""
    alone = fleet(speed_median=2.0, speed_sigma=0.0, download=4.0, download_sigma=0.0, upload=2.0, upload_sigma=0.0)
    (effort,) = alone.efforts(0, [0])
    assert (effort.download, effort.upload, effort.seconds) == (2.0, 4.0, 11.0)
    assert effort.steps == 8, "of 10 s, 6 go to the connection"
    assert effort.slow
    assert [effort.steps_after(t) for t in (0.0, 2.0, 2.4, 2.5, 7.0, 11.0, 99.0)] == [0, 0, 0, 1, 10, 10, 10]


def test_a_connection_that_is_too_slow_leaves_no_step():
    (effort,) = fleet(deadline=5.0, download=1.0, upload=1.0).efforts(0, [0])
    assert effort.steps == 0
    assert effort.slow
    assert not effort.lost


def test_without_a_connection_it_is_the_fleet_of_speeds():
    from fedlga.fleets.speeds import SpeedFleet

    workload = Workload(3, [20] * 50, 5, 8.0)
    speeds = SpeedFleet(workload, speed_median=2.0, speed_sigma=0.6)
    phones = PopulationFleet(workload, speed_median=2.0, speed_sigma=0.6, download=0.0, upload=0.0)
    assert phones.efforts(0, range(50)) == speeds.efforts(0, range(50))
    assert phones.always_slow() == speeds.always_slow()


def test_draws_are_as_asked():
    many = fleet(20000, size=int(1e6 / 8), correlation=0.45)
    speeds = np.log(many.speed_of)
    down, up = np.log(np.asarray(many.transfer_of)).T  # seconds for a megabit: the inverse of megabits a second
    assert np.exp(np.median(speeds)) == pytest.approx(1.7, rel=0.03)
    assert speeds.std() == pytest.approx(0.6, rel=0.03)
    assert np.exp(-np.median(down)) == pytest.approx(35.0, rel=0.03)
    assert (down.std(), up.std()) == (pytest.approx(0.5, rel=0.03), pytest.approx(0.7, rel=0.03))
    assert np.corrcoef(down, up)[0, 1] == pytest.approx(0.45, abs=0.03)
    assert np.corrcoef(speeds, down)[0, 1] == pytest.approx(0.0, abs=0.03)


def test_a_heavy_tail():
    """P(slower than x times) = x^-tail, if all would be equally fast."""
    slower = 1.7 / np.asarray(fleet(20000, speed_sigma=0.0, tail=1.5).speed_of)
    assert slower.min() >= 1
    for x in (2.0, 5.0, 20.0):
        assert np.mean(slower > x) == pytest.approx(x**-1.5, abs=0.01)


@pytest.mark.parametrize(("available", "swing", "fullest"), [(0.15, 4.0, 3.0), (0.5, 2.0, 15.0), (0.9, 1.0, 0.0)])
def test_the_share_that_is_there_follows_the_day(available, swing, fullest):
    many = fleet(20000, available=available, swing=swing, fullest_hour=fullest)
    depth = (swing - 1) / (swing + 1)
    for hour in range(0, 48, 3):
        share = len(many.present(hour * 3600.0)) / 20000
        wanted = available * (1 + depth * math.cos(2 * math.pi * (hour - fullest) / 24))
        assert share == pytest.approx(wanted, abs=5 * math.sqrt(0.25 / 20000)), hour


def test_the_hour_in_which_a_run_begins():
    early, late = (fleet(500, available=0.3, start_hour=hour) for hour in (0.0, 6.0))
    assert early.present(6 * 3600.0) == late.present(0.0)


def test_everybody_is_there_by_default():
    assert fleet(3).present(12345.0) is None
    assert fleet(3).leaves(1, 12345.0) == math.inf


WINDOWS = "device,start,end\n0,10,20\n1,15,30\n0,90,105\n"


def test_windows_from_a_file(tmp_path):
    """Of a period of 100 s. Device 0 is there from 10 to 20 and from 90 to 5 of the next."""
    three = fleet(3, windows=write(tmp_path, WINDOWS), period=100.0)
    assert [three.present(t) for t in (0.0, 5.0, 10.0, 17.0, 20.0, 30.0, 90.0, 204.0)] == [
        [0],
        [],
        [0],
        [0, 1],
        [1],
        [],
        [0],
        [0],
    ]
    assert three.leaves(0, 17.0) == 3.0
    assert three.leaves(0, 95.0) == 10.0
    assert three.leaves(0, 103.0) == 2.0
    assert three.leaves(2, 17.0) == 0.0, "it never comes"
    assert three.next_arrival(30.0) == 90.0
    assert three.next_arrival(107.0) == 110.0


def test_figures_from_a_file(tmp_path):
    file = write(tmp_path, "device,speed,download,upload\n1,5.0,8,4\n2,,1,\n")
    phones = fleet(3, figures=file)
    drawn = fleet(3)
    assert phones.speed_of == [drawn.speed_of[0], 5.0, drawn.speed_of[2]]
    assert phones.transfer_of[1] == (1.0, 2.0)
    assert phones.transfer_of[2] == (8.0, drawn.transfer_of[2][1])


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("figures", "", "has no rows; it takes columns device, and speed"),
        ("figures", "speed\n1\n", "has no column device; it takes device, and speed"),
        ("figures", "device,speed\n3,1\n", "line 2 of .*: there is no device '3'; it takes 0 to 2"),
        ("figures", "device,speed\n0,x\n", "speed is 'x'; it takes a number"),
        ("figures", "device,speed\n0,0\n", "speed is 0; it takes a finite number above 0"),
        ("figures", "device,speed\n0,nan\n", "speed is nan"),
        ("figures", "device,speed\n0,1\n0,2\n", "line 3 of .*: device 0 stands there twice"),
        ("figures", "device,pace\n0,1\n", "has a column 'pace'"),
        ("windows", "device,start\n0,1\n", "has no column end; it takes device, start and end"),
        ("windows", "device,start,end\n0,5,5\n", "from 5 to 5; a window starts within the period"),
        ("windows", "device,start,end\n0,5,inf\n", "end is inf"),
        ("windows", "device,start,end\n0,0,90000\n", "from 0 to 90000"),
    ],
)
def test_bad_files_are_one_line(tmp_path, kind, text, words):
    with pytest.raises(BadInput, match=words) as error:
        fleet(3, **{kind: write(tmp_path, text)})
    assert len(str(error.value).splitlines()) == 1


@settings(max_examples=60)
@given(st.text(alphabet="device,startenup0123456789.-+eEx\n\"' \x00é", max_size=80))
def test_any_text_is_read_or_refused(text):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.csv"
        for header in ("", "device,speed\n", "device,start,end\n"):
            path.write_text(header + text, encoding="utf-8")
            for read in (lambda: read_figures(path, 3), lambda: read_windows(path, 3, DAY)):
                try:
                    read()
                except BadInput as error:
                    assert len(str(error).splitlines()) == 1


def test_a_swing_that_cannot_be_is_refused():
    with pytest.raises(BadInput, match=r"swing: got 9 with available 0\.9"):
        Experiment(fleet="population", deadline=3.0, available=0.9, swing=9.0)


SMALL = {
    "method": "fedavg",
    "fleet": "population",
    "deadline": 30.0,
    "rounds": 6,
    "devices": 20,
    "cohort": 4,
    "backend": "serial",
}


@pytest.mark.parametrize(("schedule", "policy"), [("rounds", "keep"), ("over-selection", "wait"), ("buffered", "keep")])
def test_a_device_that_leaves_is_lost_and_nobody_works_while_away(tmp_path, schedule, policy):
    """Devices are there for 40 s of every 100; a step takes a second or so, the work up to half a minute."""
    rows = "\n".join(f"{device},{10 * (device % 4)},{10 * (device % 4) + 40}" for device in range(20))
    settings = {**SMALL, "windows": write(tmp_path, f"device,start,end\n{rows}\n"), "period": 100.0}
    experiment = preset("digits").changed({**settings, "schedule": schedule, "stragglers": policy})
    with simulate(experiment) as simulation:
        f, state = simulation.federation, simulation.start
        lost = 0
        for _ in range(12):
            plan = f.schedule.plan(f, state)
            for job in (*plan.ended, *plan.at_work):
                assert job.device in f.fleet.present(job.started)
                assert job.ends <= job.started + f.fleet.leaves(job.device, job.started) + 1e-9
                lost += job.lost
            from fedlga.core.round import carry_on
            from fedlga.core.types import ServerState

            state = carry_on(ServerState(state.round + 1, state.w), state, plan)
        assert lost > 0
        assert state.clock > 100


def test_the_clock_waits_until_somebody_comes(tmp_path):
    file = write(tmp_path, "device,start,end\n0,50,99\n1,50,99\n")
    experiment = preset("digits").changed({**SMALL, "windows": file, "period": 100.0, "stragglers": "keep"})
    with simulate(experiment) as simulation:
        plan = simulation.federation.schedule.plan(simulation.federation, simulation.start)
    assert {job.started for job in plan.ended} == {50.0}
    assert sorted(job.device for job in plan.ended) == [0, 1]


def test_windows_that_touch_are_one(tmp_path):
    """From 0 to 50 and from 50 to 100 of a period of 100: always there. From 90 to 100 and from 0 to 10: 20 s."""
    text = "device,start,end\n0,0,50\n0,50,100\n1,90,100\n1,0,10\n2,0,100\n"
    three = fleet(3, windows=write(tmp_path, text), period=100.0)
    assert three.leaves(0, 49.0) == three.leaves(2, 99.5) == math.inf
    assert three.leaves(1, 95.0) == pytest.approx(15.0, abs=1e-5)


@settings(max_examples=100)
@given(st.floats(0, 80000), st.floats(0, 1e7))
def test_whoever_is_waited_for_is_there(start, clock):
    """Sums are rounded: the moment of an arrival must not be just before it."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        one = fleet(1, windows=write(Path(folder), f"device,start,end\n0,{start!r},{start + 300!r}\n"))
    moment = one.next_arrival(clock)
    assert moment > clock
    assert one.present(moment) == [0]


def test_a_buffer_fills_free_places_when_devices_come(tmp_path):
    """Device 0 works for 4,000 s. Device 1 comes at 5 s and needs 4: it makes the first step, at 9 s."""
    windows = write(tmp_path, "device,start,end\n0,0,50000\n1,5,50000\n", "w.csv")
    figures = write(tmp_path, "device,speed,download,upload\n0,0.01,1e9,1e9\n1,10,1e9,1e9\n", "f.csv")
    buffered = {"schedule": "buffered", "buffer": 1, "at_work": 2, "stragglers": "wait", "deadline": 60.0}
    files = {"windows": windows, "figures": figures, "epochs": 4, "steps_per_epoch": 10}
    experiment = preset("digits").changed({**SMALL, **buffered, **files})
    with simulate(experiment) as simulation:
        plan = simulation.federation.schedule.plan(simulation.federation, simulation.start)
    assert [job.device for job in plan.counting] == [1]
    assert plan.clock == pytest.approx(9.0, abs=0.01)


@pytest.mark.parametrize("name", ["speed_sigma", "tail"])
def test_speeds_that_are_no_numbers_are_refused(name):
    with pytest.raises(BadInput, match=f"{name}: got"):
        Experiment(fleet="population", deadline=3.0, **{name: 1000.0 if name == "speed_sigma" else 0.001})
