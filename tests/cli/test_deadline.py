"""fedlga deadline: its suggestion, by hand."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def test_a_deadline_is_suggested(fedlga):
    words = ("--preset", "digits", "--set", "steps_per_epoch=1", "--set", "partition=iid", "--set", "devices=4")
    code, out, _ = fedlga("deadline", *words, "--set", "cohort=2", "--set", "speeds=[5, 2.5, 1, 0.5]")
    # 5 steps each: 1, 2, 5 and 10 seconds; in the middle 3.5
    assert code == 0
    assert "4 devices need 1 to 10 s" in out
    assert "suggested: --set fleet=speeds --set deadline=3.5 with --stragglers complete" in out
    # at 10 s all are done; at the median the two late ones have done 3.5/5 and 3.5/10 of theirs, half on average
    assert [line.split()[:2] for line in out.splitlines() if line.endswith("of their work")][1] == ["3.5", "50%"]
    assert "52% of their work" in out


def test_the_fleet_that_is_assumed_is_named(fedlga):
    code, out, _ = fedlga("deadline", "--preset", "digits")
    first = " ".join(out.split())
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert first.startswith(
        "fleet 'paper' has no speeds; this is for fleet 'speeds' with speed_median=1 speed_sigma=0.7"
    )
    _, out, _ = fedlga("deadline", "--preset", "digits", "--set", "fleet=speeds", "--set", "slow_classes=[1,2]")
    assert out.startswith("fleet 'speeds' with slow_classes=1,2 slow_speed=0.2 speed_median=1\n")


def test_only_fleets_with_speeds_have_one(fedlga):
    code, out, err = fedlga("deadline", "--preset", "digits", "--set", "fleet=paper")
    assert (code, out) == (2, "")
    assert err == "fedlga: fleet: got 'paper'; a deadline is suggested for fleet 'speeds'\n"


def test_a_fleet_of_two_speeds_has_two_choices(fedlga):
    """Two of three devices need 10 s: the median device, too. The fast one needs 2 s; by then the others did 2/10."""
    words = ("--preset", "digits", "--set", "steps_per_epoch=1", "--set", "partition=iid", "--set", "devices=3")
    code, out, _ = fedlga("deadline", *words, "--set", "cohort=2", "--set", "speeds=[2.5, 0.5, 0.5]")
    *lines, last = out.splitlines()
    assert code == 0
    rows = [line.split()[:3] for line in lines if "%" in line]
    assert rows == [["2", "33%", "20%"], ["6", "33%", "60%"], ["10", "100%", "-"]]
    assert last == "suggested: --set fleet=speeds --set deadline=2 with --stragglers complete"
    _, out, _ = fedlga("deadline", *words, "--set", "cohort=2", "--set", "speeds=[1, 1, 1]")
    *lines, last = out.splitlines()
    assert [line.split() for line in lines if "%" in line] == [["5", "100%", "-"]]
    assert last == "suggested: --set fleet=speeds --set deadline=5; all devices are equally fast, so all finish by it"
