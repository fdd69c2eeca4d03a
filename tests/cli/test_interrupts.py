"""Ctrl-C: the round is finished, a second one does not wait for it, and both say how to go on."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from commands import ENDLESS, FAST, PATIENCE, find_children, kill_group, start, wait_for_lines, wait_until
from fedlga.cli.interrupts import Interrupts, StopSignal, report_stop

DIGITS_DEVICES = 20  # of the preset


def count_lines(file: Path) -> int:
    return len(file.read_text().splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(fedlga, tmp_path, backend, sent):
    words = ("run", *FAST, "--rounds", ENDLESS, "--backend", backend, "--method", "scaffold", "--out", "r")
    process = start(*words, folder=tmp_path)
    wait_for_lines(tmp_path / "r" / "rounds.jsonl", 3)
    kill_group(process, sent)  # to all processes of the terminal, as a real Ctrl-C
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + sent
    assert err == ""
    assert "stopping after this round" in out
    assert "to go on: fedlga run --resume r" in out
    done = count_lines(tmp_path / "r" / "rounds.jsonl")
    code, _, err = fedlga("run", "--resume", "r", "--rounds", done + 2)
    assert (code, err) == (0, "")
    assert count_lines(tmp_path / "r" / "rounds.jsonl") == done + 2


@pytest.mark.slow
def test_ctrl_c_in_a_comparison_keeps_what_is_done(tmp_path):
    words = ("compare", *FAST, "--methods", "fedavg,fedprox", "--seeds", "0", "--rounds", ENDLESS, "--out", "c")
    process = start(*words, folder=tmp_path)
    wait_for_lines(tmp_path / "c" / "fedavg-keep" / "seed-0" / "rounds.jsonl", 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert "to go on: fedlga compare --resume c" in out
    assert (tmp_path / "c" / "fedavg-keep" / "seed-0" / "checkpoint").is_dir()
    assert all((tmp_path / "c" / name).is_file() for name in ("comparison.csv", "runs.csv", "comparison.json"))
    assert "never" not in out, "what was not run has not missed its target"


@pytest.mark.slow
def test_before_the_first_round_is_done_one_ctrl_c_stops_at_once(tmp_path):
    """Rounds of hours: there is nothing to finish."""
    words = ("run", "--preset", "digits", "--rounds", "3", "--backend", "pool", "--out", "r", "--target", "1")
    process = start(*words, "--set", "epochs=20000000", "--set", "evaluate_every=1", folder=tmp_path)
    wait_until((tmp_path / "r" / "rounds.jsonl").exists, "the first round begins")
    kill_group(process, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert "stopped at once; to go on from the last checkpoint: fedlga run --resume r" in out


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_round(tmp_path):
    """The first round is short, the second one would take hours."""
    recording = "round,device,epochs\n" + "".join(f"1,{device},1\n" for device in range(DIGITS_DEVICES))
    (tmp_path / "trace.csv").write_text(recording)
    words = ("run", "--preset", "digits", "--rounds", "3", "--backend", "pool", "--out", "r", "--target", "1")
    words += ("--set", "epochs=20000000", "--set", "fleet=trace", "--set", "trace=trace.csv")
    process = start(*words, folder=tmp_path)
    wait_for_lines(tmp_path / "r" / "rounds.jsonl", 1)
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("round 1/3") for line in lines)  # it is shown, so the next round comes
    kill_group(process, signal.SIGINT)
    assert any("stopping after this round; Ctrl-C again stops at once" in line for line in lines)
    kill_group(process, signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err) == (130, "")
    assert "stopped at once; to go on from the last checkpoint: fedlga run --resume r" in out


@pytest.mark.slow
def test_ctrl_c_while_workers_start(tmp_path):
    words = ("run", *FAST, "--rounds", ENDLESS, "--backend", "pool", "--out", "r")
    process = start(*words, folder=tmp_path)
    wait_until(lambda: find_children(process.pid), "a worker is started")
    kill_group(process, signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_the_first_ctrl_c_is_kept_until_the_round_is_over():
    messages: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupts(messages.append) as interrupts:
        assert interrupts.between_rounds() is False
        signal.raise_signal(signal.SIGINT)
        assert messages == ["stopping after this round; Ctrl-C again stops at once, at the last checkpoint"]
        assert interrupts.between_rounds() is True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stop_that_left_nothing_says_so(tmp_path, capsys):
    assert report_stop(tmp_path, "run", KeyboardInterrupt()) == 130
    assert capsys.readouterr().out == "stopped before the first round; nothing was written\n"
    folder = tmp_path / "with a space"
    folder.mkdir()
    (folder / "experiment.toml").write_text("")
    assert report_stop(folder, "run", StopSignal(signal.SIGTERM), "mine") == 143
    last = f"fedlga run --resume '{folder}' --superlink mine\n"
    assert capsys.readouterr().out == f"stopped at once; to go on from the last checkpoint: {last}"
