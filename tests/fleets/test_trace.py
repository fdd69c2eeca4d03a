"""A recorded fleet: traces of epochs and of seconds by hand, and where a bad trace is wrong."""

from __future__ import annotations

import pytest

from fedlga.core.fleet import Effort, Workload
from fedlga.core.settings import BadInput
from fedlga.fleets.trace import TraceFleet, read_trace


def trace(tmp_path, text):
    file = tmp_path / "trace.csv"
    file.write_text(text)
    return TraceFleet(Workload(0, [10, 10], epochs=5, deadline=5.0), trace=str(file))


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
        read_trace(tmp_path / "none.csv", devices=1, epochs=1, deadline=1.0)
