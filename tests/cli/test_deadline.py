"""fedlga deadline: its suggestion, by hand."""

from __future__ import annotations


def test_a_deadline_is_suggested(fedlga):
    words = ("--preset", "digits", "--set", "steps_per_epoch=1", "--set", "partition=iid", "--set", "devices=4")
    code, out, _ = fedlga("deadline", *words, "--set", "cohort=2", "--set", "speeds=[5, 2.5, 1, 0.5]")
    # 5 steps each: 1, 2, 5 and 10 seconds; in the middle 3.5
    assert code == 0
    assert "4 devices need 1 to 10 s" in out
    assert "suggested: --set deadline=3.5 with --stragglers complete" in out
    # at 10 s all are done; at the median the two late ones have done 3.5/5 and 3.5/10 of theirs, half on average
    assert [line.split()[:2] for line in out.splitlines() if line.endswith("of their work")][1] == ["3.5", "50%"]
    assert "52% of their work" in out


def test_only_fleets_with_speeds_have_one(fedlga):
    code, out, err = fedlga("deadline", "--preset", "digits", "--set", "fleet=paper")
    assert (code, out) == (2, "")
    assert err == "fedlga: fleet: got 'paper'; a deadline is suggested for fleet 'speeds'\n"
