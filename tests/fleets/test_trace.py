"""Who is slow: bounds, rates over many rounds, costs, and that draws depend on nothing but seed, round and device."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.fleet import Effort, PaperFleet, SpeedFleet, log_normal_speeds, read_trace
from fedlga.settings import BadInput


def paper(rho=0.5, tau_min=1, tau_max=4, epochs=5, unit=3, devices=50, dropout=0.0, seed=0):
    return PaperFleet(seed, [epochs * unit] * devices, epochs, float(epochs), dropout, rho, tau_min, tau_max)


@settings(deadline=None)
@given(st.data())
def test_the_papers_fleet_keeps_its_bounds(data):
    epochs = data.draw(st.integers(1, 9))
    tau_max = data.draw(st.integers(1, epochs))
    tau_min = data.draw(st.integers(1, tau_max))
    rho, cohort = data.draw(st.floats(0, 1)), data.draw(st.integers(1, 20))
    fleet = paper(rho, tau_min, tau_max, epochs, seed=data.draw(st.integers(0, 2**32)))
    efforts = fleet.draw(data.draw(st.integers(0, 1000)), range(cohort))
    assert [e.device for e in efforts] == list(range(cohort))
    for e in efforts:
        done = e.steps / 3
        assert done == epochs or epochs - tau_max + 1 <= done <= epochs - tau_min + 1
        assert e.steps_asked == epochs * 3
        # what it does in the deadline, it does at one speed
        assert e.seconds == pytest.approx(fleet.deadline * e.steps_asked / e.steps)
    assert sum(e.slow for e in efforts) <= int(rho * cohort) + 1


def test_the_share_of_slow_devices_is_rho_and_tau_is_uniform():
    # tau from 2, so that a slow device is always seen to be slow; rho K = 3.5 is not whole on purpose.
    fleet = paper(rho=0.35, tau_min=2, tau_max=5)
    efforts = [e for round in range(4000) for e in fleet.draw(round, range(10))]
    slow = [e for e in efforts if e.slow]
    assert len(slow) / len(efforts) == pytest.approx(0.35, abs=0.01)
    for units in (1, 2, 3, 4):
        assert sum(e.steps == units * 3 for e in slow) / len(slow) == pytest.approx(0.25, abs=0.02)


def test_at_tau_max_1_nobody_is_slow():
    assert not any(e.slow for round in range(50) for e in paper(rho=1.0, tau_max=1).draw(round, range(10)))


def test_drop_outs_are_independent_and_at_their_rate():
    fleet = paper(rho=0.0, dropout=0.2)
    lost = [[e.lost for e in fleet.draw(round, range(10))] for round in range(2000)]
    assert sum(map(sum, lost)) / 20000 == pytest.approx(0.2, abs=0.01)
    pairs = sum(a and b for a, b, *_ in lost) / 2000
    assert pairs == pytest.approx(0.04, abs=0.02)
    assert all(e.steps == 0 and not e.slow for e in fleet.draw(0, range(50)) if e.lost)


def test_draws_depend_on_seed_and_round_alone():
    assert paper().draw(7, range(10)) == paper().draw(7, range(10))
    assert paper().draw(7, range(10)) != paper().draw(8, range(10))
    assert paper().draw(7, range(10)) != paper(seed=1).draw(7, range(10))


def test_speeds_and_a_deadline_by_hand():
    # 12 steps asked, 4 seconds: at 3 a second just done; at 1.3 a second 5.2 steps, so 5; at 0.2 not one.
    fleet = SpeedFleet(0, [12] * 4, 4, 4.0, 0.0, [3.0, 1.3, 0.2, 12.0])
    assert fleet.draw(0, [0, 1, 2, 3]) == [
        Effort(0, 12, 12, 4.0),
        Effort(1, 5, 12, pytest.approx(12 / 1.3)),
        Effort(2, 0, 12, pytest.approx(60.0)),
        Effort(3, 12, 12, 1.0),
    ]
    everyone, fast = fleet.draw(0, [0, 1, 2, 3]), fleet.draw(0, [3])
    assert fleet.seconds(everyone, waits=True) == pytest.approx(60.0)  # the slowest
    assert fleet.seconds(everyone, waits=False) == 4.0  # the deadline
    assert fleet.seconds(fast, waits=False) == fleet.seconds(fast, waits=True) == 1.0  # all are there before it


def test_whoever_waits_does_not_wait_for_the_lost_and_others_cannot_know():
    fleet = paper(rho=0.0)
    efforts = [Effort(0, 15, 15, 3.0), Effort(1, 0, 15, 99.0, lost=True)]
    assert fleet.seconds(efforts, waits=True) == 3.0
    assert fleet.seconds(efforts, waits=False) == 5.0


def test_log_normal_speeds_have_their_median_and_spread():
    import numpy as np

    speeds = np.array(log_normal_speeds(0, 20000, median=2.0, sigma=0.7))
    assert np.median(speeds) == pytest.approx(2.0, rel=0.02)
    assert np.log(speeds).std() == pytest.approx(0.7, rel=0.02)
    assert log_normal_speeds(0, 5, 2.0, 0.7) != log_normal_speeds(1, 5, 2.0, 0.7)


def trace(tmp_path, text, **changes):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    settings = {"seed": 0, "work": [10, 10], "epochs": 5, "deadline": 5.0, "dropout": 0.0, **changes}
    return read_trace(file, **settings)


def test_a_trace_of_epochs(tmp_path):
    fleet = trace(tmp_path, "round,device,epochs\n1,0,2\n2,1,0\n2,0,2.5\n")
    assert fleet.draw(0, [0, 1]) == [Effort(0, 4, 10, pytest.approx(12.5)), Effort(1, 10, 10, 5.0)]
    half, gone = fleet.draw(1, [0, 1])
    assert (half.steps, gone.steps, gone.lost) == (5, 0, True)
    assert fleet.draw(2, [0]) == [Effort(0, 10, 10, 5.0)]  # not in the recording: on time


def test_a_trace_of_seconds(tmp_path):
    # Device 0 needs 20 seconds for its 10 steps and has 5: 2 steps. Device 1 needs 4: done early.
    fleet = trace(tmp_path, "device,round,seconds\n0,1,20\n1,1,4\n")
    efforts = fleet.draw(0, [0, 1])
    assert efforts == [Effort(0, 2, 10, 20.0), Effort(1, 10, 10, 4.0)]
    assert fleet.seconds(efforts, waits=True) == 20.0
    assert fleet.seconds(efforts, waits=False) == 5.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("round,device,epochs\n1,2,3\n", "there is no device 2; it takes 0 to 1"),
        ("round,device,epochs\n1,-1,3\n", "there is no device -1"),
        ("round,device,epochs\n1,0,6\n", "at most the 5"),
        ("round,device,epochs\n0,0,1\n", "rounds count from 1"),
        ("round,device,epochs\n1,0,-1\n", "epochs from 0"),
        ("round,device,seconds\n1,0,0\n", "got round 1, seconds 0"),
        ("round,device,epochs\n1,0,nan\n", "got round 1, epochs nan"),
        ("round,device,epochs\n1,zero,2\n", "line 2 .*take whole numbers"),
        ("round,device,epochs\n1,0\n", "line 2 .*take whole numbers"),
        ("round,device,epochs\n1,0,1\n1,0,2\n", "line 3 .*stand there twice"),
        ("round,device\n1,0\n", "has no column seconds"),
        ("device,epochs\n1,0\n", "has no column round"),
        ("", "has no rows"),
    ],
)
def test_a_bad_trace_says_where(tmp_path, text, said):
    with pytest.raises(BadInput, match=said) as caught:
        trace(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_trace_that_is_not_there(tmp_path):
    with pytest.raises(BadInput, match=r"trace: cannot read .*none.csv' \(No such file"):
        read_trace(tmp_path / "none.csv", seed=0, work=[1], epochs=1, deadline=1.0, dropout=0.0)
