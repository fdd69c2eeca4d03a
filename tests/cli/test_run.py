"""The command line: what it prints, its exit codes, and that a wrong call costs one line and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedlga import cli
from fedlga.methods import METHODS, method_class


@pytest.fixture
def fedlga(monkeypatch, tmp_path, capfd):
    """Call the command line in an empty folder; gives exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLGA_DATA", str(tmp_path / "no data"))

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedlga", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


FAST = ("--preset", "digits", "--set", "steps_per_epoch=1", "--set", "lr=0.1")
PAIRS = [(method, policy) for method in METHODS for policy in method_class(method).policies]


@pytest.mark.parametrize(("method", "policy"), PAIRS)
def test_run_takes_every_method_and_policy(fedlga, method, policy):
    code, out, err = fedlga("run", *FAST, "--method", method, "--stragglers", policy, "--rounds", 3, "--out", "r")
    assert (code, err) == (0, "")
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["method"], summary["stragglers"], summary["rounds"]) == (method, policy, 3)
    assert f"{method} ({policy}), digits, seed 0: 5 of 20 devices a round, 50% slow" in out
    assert "run folder: r" in out


def test_run_ends_with_a_table_and_the_folder_within_80_columns(fedlga):
    code, out, _ = fedlga("run", *FAST, "--rounds", 2, "--target", 0.99)
    assert code == 0
    lines = out.splitlines()
    assert any(line.startswith("to 99%") and "not reached" in line for line in lines)
    assert any(line.startswith("best accuracy") for line in lines)
    folder = lines[-1].removeprefix("run folder: ")
    assert Path(folder, "summary.json").exists()
    assert folder.startswith("runs/")
    assert max(map(len, lines[:-1])) <= 100


def test_run_from_a_file_with_changes(fedlga):
    Path("e.toml").write_text(
        'dataset = "digits"\nmethod = "fedprox"\nrounds = 2\nbackend = "serial"\n[fedprox]\nmu = 0.5\n'
    )
    assert fedlga("run", "e.toml", "--set", "mu=0.25", "--set", "rho=0.9", "--seed", 7, "--out", "r")[0] == 0
    written = Path("r/experiment.toml").read_text()
    assert "mu = 0.25" in written
    assert "rho = 0.9" in written
    assert "seed = 7" in written


WRONG = {
    "unknown method": (["--method", "fedagv"], "method: there is no 'fedagv'; did you mean 'fedavg'?"),
    "unknown dataset": (["--dataset", "cifar10"], "dataset: there is no 'cifar10'; did you mean 'cifar-10'?"),
    "unknown field": (["--set", "rhoo=1"], "rhoo: there is no such field; did you mean 'rho'?"),
    "unknown preset": (["--preset", "papr"], "preset: there is no 'papr'; did you mean 'paper'?"),
    "K > N": (["--set", "cohort=60"], "cohort: got 60; it takes at most the 50 devices"),
    "P > classes": (["--set", "classes_per_device=12"], "classes_per_device: got 12; it takes 1 to 10"),
    "rho": (["--set", "rho=2"], "rho: got 2.0; it takes a number from 0 to 1"),
    "tau_max > E": (["--set", "tau_max=9"], "tau_max: got 9; it takes 1 to epochs, which is 5"),
    "E < 1": (["--set", "epochs=0"], "epochs: got 0; it takes a whole number of at least 1"),
    "negative rate": (["--set", "lr=-1"], "lr: got -1.0; it takes a number above 0"),
    "negative global rate": (["--set", "eta_g=-1"], "fedlga.eta_g: got -1.0; it takes a number above 0"),
    "another policy for fedlga": (["--stragglers", "keep"], "stragglers: got 'keep'; method fedlga takes complete"),
    "an option that is none": (["--fast"], "No such option"),
    "not a number": (["--rounds", "many"], "is not a valid integer"),
    "file and preset": (["e.toml", "--preset", "paper"], "--preset: got 'paper' with 'e.toml'"),
    "no such file": (["none.toml"], "experiment: cannot read 'none.toml' (No such file or directory)"),
    "resume of nothing": (["--resume", "nowhere"], "--resume: 'nowhere' holds no run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_costs_one_line_and_leaves_nothing(fedlga, tmp_path, case):
    words, said = WRONG[case]
    code, out, err = fedlga("run", *words)
    assert code == 2
    assert out == ""
    assert err.startswith("fedlga: ")
    assert err.count("\n") == 1
    assert said in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "fleet=trace", "--set", "trace=t.csv"], "there is no device 99; it takes 0 to 19"),
        (["--set", "model=models_for_tests:with_batch_norm"], "buffers that training changes"),
        (["--set", "devices=4", "--set", "cohort=3"], "hold 8 of 10 classes"),
        (["--set", "devices=2000", "--set", "partition=iid"], "devices: got 2000; the dataset has 1438 examples"),
    ],
)
def test_what_only_the_data_tells_leaves_nothing_either(fedlga, words, said):
    Path("t.csv").write_text("round,device,epochs\n1,99,2\n")
    for command in ("run", "compare"):
        code, _, err = fedlga(command, *FAST, *words, "--out", "r")
        assert code == 2
        assert err.count("\n") == 1
        assert said in err
        assert not Path("r").exists()


def test_a_folder_that_holds_another_run(fedlga):
    assert fedlga("run", *FAST, "--rounds", 1, "--out", "r")[0] == 0
    before = {p: p.stat().st_mtime_ns for p in Path("r").rglob("*")}
    for command in ("run", "compare"):
        code, _, err = fedlga(command, *FAST, "--rounds", 1, "--out", "r")
        assert code == 2
        assert "--out: 'r' already holds another run; take another folder, or --resume it" in err
    assert {p: p.stat().st_mtime_ns for p in Path("r").rglob("*")} == before


def test_an_unwritable_folder(fedlga, monkeypatch):
    Path("file").write_text("")
    code, _, err = fedlga("run", *FAST, "--out", "file")
    assert (code, err) == (2, "fedlga: --out: 'file' is a file; it takes a folder\n")
    code, _, err = fedlga("run", *FAST, "--out", "file/below")
    assert code == 2
    assert err.count("\n") == 1
    code, _, err = fedlga("run", *FAST, "--out", "x" * 300)
    assert (code, err.count("\n")) == (2, 1)
    assert "File name too long" in err
    Path("locked").mkdir()
    monkeypatch.setattr("os.access", lambda *_: False)  # root may write anywhere: say what the system would
    code, _, err = fedlga("run", *FAST, "--out", "locked/run")
    assert code == 2
    assert "cannot write to" in err
    assert err.count("\n") == 1
    assert list(Path("locked").iterdir()) == []


def test_a_damaged_data_file(fedlga, monkeypatch, tmp_path):
    from fedlga.data.datasets import DATASETS

    folder = tmp_path / "no data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name in DATASETS["fashion-mnist"].files:
        (folder / name).write_bytes(b"\x1f\x8b\x08 not what it was")
    code, _, err = fedlga("run", "--backend", "serial")
    assert code == 2
    assert "is damaged; delete it and fetch it again" in err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_compare_prints_and_writes_one_table(fedlga):
    words = ("--methods", "fedavg,fedprox,fedlga", "--seeds", "0-1", "--rounds", 8, "--target", 0.2, "--out", "c")
    code, out, err = fedlga("compare", *FAST, *words, "--set", "mu=0.5")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if line.startswith(("fedavg ", "fedprox ", "fedlga "))]
    assert len(rows) == 3
    assert all("2/2" in row for row in rows)
    assert max(map(len, rows)) <= 80
    table = json.loads(Path("c/comparison.json").read_text())
    assert [row["method"] for row in table["table"]] == ["fedavg", "fedprox", "fedlga"]
    assert len(table["runs"]) == 6
    fedavg = [run["rounds_to_target"] for run in table["runs"] if run["method"] == "fedavg"]
    assert table["table"][0]["rounds_to_target"] == sum(fedavg) / 2
    assert table["table"][0]["rounds_more"] == 0
    assert Path("c/comparison.csv").read_text().startswith("method,stragglers,seeds,reached,rounds_to_target,")
    assert len(Path("c/runs.csv").read_text().splitlines()) == 7
    assert "mu = 0.5" in Path("c/fedprox-keep/seed-0/experiment.toml").read_text()


def test_compare_pairs_policies_with_the_methods_that_take_them(fedlga):
    words = ("--methods", "fedavg,fedlga", "--stragglers", "keep,complete", "--seeds", "0", "--rounds", 1, "--out", "c")
    assert fedlga("compare", *FAST, *words)[0] == 0
    assert {p.name for p in Path("c").iterdir() if p.is_dir()} == {"fedavg-keep", "fedavg-complete", "fedlga-complete"}


def test_a_target_never_reached_is_said(fedlga):
    _, out, _ = fedlga(
        "compare", *FAST, "--methods", "fedavg", "--seeds", "0", "--rounds", 1, "--target", 1, "--out", "c"
    )
    (row,) = [line for line in out.splitlines() if line.startswith("fedavg ")]
    assert "never" in row
    assert "0/1" in row


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "fedavg,fedpro"], "did you mean 'fedprox'?"),
        (["--methods", "fedlga", "--stragglers", "keep"], "--stragglers: method fedlga takes complete; got keep"),
        (["--stragglers", "kep"], "did you mean 'keep'?"),
        (["--methods", "fedavg", "--set", "mu=1"], "mu: there is no such field in the experiment or in any of fedavg"),
        (["--set", "method=fedavg"], "--set: method is what compare varies"),
        (["--seeds", "4-"], "--seeds: got '4-'"),
        (["--resume", "nowhere"], "--resume: 'nowhere' holds no comparison"),
    ],
)
def test_a_wrong_comparison(fedlga, tmp_path, words, said):
    code, _, err = fedlga("compare", *words)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_compare_goes_on_where_it_was_stopped(fedlga):
    words = ("--methods", "fedavg,scaffold", "--seeds", "0-1", "--rounds", 3)
    fedlga("compare", *FAST, *words, "--out", "whole")
    fedlga("compare", *FAST, *words, "--out", "broken")
    import shutil

    shutil.rmtree("broken/scaffold-keep/seed-1")  # as if it had been stopped before the last run
    Path("broken/fedavg-keep/seed-1/summary.json").unlink()  # killed after its last round, before its summary
    kept = Path("broken/fedavg-keep/seed-0/rounds.jsonl").stat().st_mtime_ns
    code, _, _ = fedlga("compare", "--resume", "broken")
    assert code == 0
    assert Path("broken/fedavg-keep/seed-0/rounds.jsonl").stat().st_mtime_ns == kept, "what is done is not done again"
    whole, again = (json.loads(Path(f"{name}/comparison.json").read_text())["table"] for name in ("whole", "broken"))
    for a, b in zip(whole, again, strict=True):
        assert {k: v for k, v in a.items() if not k.startswith("seconds")} == {
            k: v for k, v in b.items() if not k.startswith("seconds")
        }
    assert {row["seeds"] for row in again} == {2}


def test_audit_prints_and_writes_its_table(fedlga):
    code, out, err = fedlga("audit", "--preset", "digits", "--rounds", 12, "--out", "audit.csv")
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if line.startswith(("batch, ", "epoch, "))]
    assert len([row for row in rows if ":" not in row]) == 5
    assert max(map(len, rows)) <= 80
    lines = Path("audit.csv").read_text().splitlines()
    assert lines[0] == "regime,rounds,trusted,growth,linear,printed,best,trusted_mean,stragglers"
    assert len(lines) == 6
    code, _, err = fedlga("audit", "--preset", "digits", "--rounds", 2, "--out", "audit.csv/x/audit.csv")
    assert (code, err.count("\n")) == (2, 1)
    assert "--out: cannot write to 'audit.csv/x' (Not a directory)" in err
    code, _, err = fedlga("audit", "--preset", "digits", "--only", "batch, 0.2")
    assert (code, err.count("\n")) == (2, 1)


def test_an_audited_run_says_how_close_it_came(fedlga):
    _, out, _ = fedlga("run", *FAST, "--rounds", 4, "--audit", "--out", "r")
    assert "approximation" in out
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["best_scale_error"] <= summary["approximation_error"]
    line = json.loads(Path("r/rounds.jsonl").read_text().splitlines()[0])
    assert {"error", "sent", "completed", "true_scales"} <= line["audit"].keys()


def test_compare_shows_whom_stragglers_cost(fedlga):
    words = ("--preset", "fleet", "--dataset", "digits", "--set", "devices=20", "--set", "cohort=5", "--rounds", 6)
    words += ("--stragglers", "wait,drop,keep,complete", "--seeds", "0", "--backend", "serial", "--set", "lr=0.1")
    code, out, err = fedlga("compare", *words, "--out", "c", "--audit")
    assert (code, err) == (0, "")
    (header,) = [line.split() for line in out.splitlines() if line.startswith("at the end")]
    assert header[-5:] == ["slow", "worst", "simulated", "s", "error"]
    assert max(map(len, out.splitlines())) <= 110
    table = json.loads(Path("c/comparison.json").read_text())["table"]
    assert [row["stragglers"] for row in table] == ["wait", "drop", "keep", "complete"]
    assert all(row["last_accuracy_slow"] is not None for row in table)
    assert table[0]["simulated_seconds"] == 5 * table[2]["simulated_seconds"]
    assert Path("c/comparison.png").read_bytes().startswith(b"\x89PNG")
    drawn = Path("c/comparison.svg").read_text()
    assert all(word in drawn for word in ("<svg", "simulated seconds", "complete", "on the slow devices"))


def test_data_commands(fedlga, tmp_path):
    code, out, _ = fedlga("data", "list")
    assert code == 0
    assert "digits" in out
    assert "not fetched" in out
    code, out, _ = fedlga("data", "show", "--preset", "digits", "--out", "held.png")
    assert code == 0
    assert "1438 examples" in out
    assert Path("held.png").read_bytes().startswith(b"\x89PNG")
    code, _, err = fedlga("data", "show", "--preset", "digits", "--out", "held.doc")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = fedlga("data", "fetch", "mnist")
    assert code == 2
    assert "did you mean" in err
    assert fedlga("data", "fetch", "digits")[1] == "digits: part of the package, complete and as published\n"


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


def test_presets_and_fields_are_listed(fedlga):
    assert "paper-epochs" in fedlga("presets")[1]
    out = fedlga("fields")[1]
    for name in ("rho", "fedprox.mu", "complete.scale", "partition_alpha"):
        assert name in out


def test_help_for_every_command(fedlga):
    for words in ([], ["run"], ["compare"], ["data"], ["data", "show"], ["data", "fetch"]):
        code, out, _ = fedlga(*words, "--help")
        assert code == 0
        assert "Usage: fedlga" in out
    assert fedlga("--version")[1].startswith("fedlga, version 0.")


def start(*words: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedlga.cli", *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True
    )


def wait_for(file: Path, lines: int) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if file.exists() and len(file.read_text().splitlines()) >= lines:
            return
        time.sleep(0.02)
    raise AssertionError(f"{file} did not grow to {lines} lines")


@pytest.mark.parametrize("backend", ["serial", "pool"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(tmp_path, backend, sent):
    words = ("run", *FAST, "--rounds", "5000", "--backend", backend, "--method", "scaffold", "--out", "r")
    process = start(*words, folder=tmp_path)
    wait_for(tmp_path / "r" / "rounds.jsonl", 3)
    os.killpg(process.pid, sent)  # to all processes of the terminal, as a real Ctrl-C
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert err == ""
    assert "stopping after this round" in out
    assert "to go on: fedlga run --resume r" in out
    done = len((tmp_path / "r" / "rounds.jsonl").read_text().splitlines())
    go_on = start("run", "--resume", "r", "--rounds", str(done + 2), folder=tmp_path)
    out, err = go_on.communicate(timeout=200)
    assert (go_on.returncode, err) == (0, "")
    assert len((tmp_path / "r" / "rounds.jsonl").read_text().splitlines()) == done + 2


def test_ctrl_c_in_a_comparison_keeps_what_is_done(tmp_path):
    words = ("compare", *FAST, "--methods", "fedavg,fedprox", "--seeds", "0", "--rounds", "3000", "--out", "c")
    process = start(*words, folder=tmp_path)
    wait_for(tmp_path / "c" / "fedavg-keep" / "seed-0" / "rounds.jsonl", 3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, err) == (1, "")
    assert "to go on: fedlga compare --resume c" in out
    assert (tmp_path / "c" / "fedavg-keep" / "seed-0" / "checkpoint").is_dir()
    assert all((tmp_path / "c" / name).is_file() for name in ("comparison.csv", "runs.csv", "comparison.json"))
    assert "never" not in out, "what was not run has not missed its target"


def test_a_second_ctrl_c_does_not_wait_for_the_round(tmp_path):
    """Rounds of minutes: the second Ctrl-C ends them now, and says how to go on."""
    words = ("run", "--preset", "digits", "--rounds", "3", "--backend", "pool", "--out", "r", "--target", "1")
    process = start(*words, "--set", "epochs=2000", "--set", "evaluate_every=1", folder=tmp_path)
    wait_for(tmp_path / "r" / "experiment.toml", 1)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)  # before the first round is done: nothing to finish
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "")
    assert "stopped at once; to go on from the last checkpoint: fedlga run --resume r" in out


def test_ctrl_c_while_workers_start(tmp_path):
    words = ("run", *FAST, "--rounds", "5000", "--backend", "pool", "--out", "r")
    process = start(*words, folder=tmp_path)
    until = time.monotonic() + 200
    while not Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "Traceback" not in err


def test_a_killed_run_leaves_no_shared_memory_behind(tmp_path):
    """The workers outlive whoever was killed, see their pipe close, tidy up and end."""
    homes = [tmp_path / "temp"]
    homes[0].mkdir()
    environment = {**os.environ, "TMPDIR": str(homes[0])}
    command = [sys.executable, "-m", "fedlga.cli", "run", *FAST, "--backend", "pool", "--rounds", "5000", "--out", "r"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    wait_for(tmp_path / "r" / "rounds.jsonl", 2)
    mapped = re.findall(r"/\S*/fedlga-[^/\s]+", Path(f"/proc/{process.pid}/maps").read_text())
    ours = {Path(folder) for folder in mapped} | set(homes[0].glob("fedlga-*"))
    assert any(folder.is_dir() for folder in ours)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while any(folder.exists() for folder in ours) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [folder for folder in ours if folder.exists()] == []


def test_a_method_and_a_model_in_the_users_own_folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass, replace\n"
        "from torch import nn\n"
        "from fedlga.methods.base import Method, mean_delta\n"
        "from fedlga.settings import setting\n"
        "from fedlga.types import Local\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Method):\n"
        "    pull: float = setting(0.1, 'how strongly devices are held back', least=0)\n"
        "    def local(self, task, memory):\n"
        "        return Local(pull=self.pull)\n"
        "    def aggregate(self, server, updates):\n"
        "        return replace(server, w=server.w + mean_delta(updates))\n"
        "def model(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
    )
    command = [str(Path(sys.executable).with_name("fedlga")), "run", *FAST, "--rounds", "2", "--backend", "pool"]
    words = ["--method", "mine:Mine", "--set", "pull=0.2", "--set", "model=mine:model", "--out", "r"]
    done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = (tmp_path / "r" / "experiment.toml").read_text()
    assert "pull = 0.2" in written


def test_the_live_line_counts_rounds_again_after_a_fetch():
    import io

    from rich.console import Console

    import fedlga
    from fedlga.display import Display

    record = next(iter(fedlga.rounds(fedlga.preset("digits"))))
    screen = io.StringIO()
    with Display(Console(file=screen, force_terminal=True, width=80)) as display:
        display.begin(200)
        display.fetching("train-images", 3_000_000, 30_000_000)
        assert [task.description for task in display._progress.tasks] == ["round 0/200", "fetching train-images"]
        display.round(record)
        (task,) = display._progress.tasks
    assert (task.description, task.completed, task.total) == ("round 1/200", 1, 200)


def test_progress_on_a_terminal_is_live_and_fits(tmp_path):
    """A real terminal of 80 columns: the live line is drawn over and over, and gone at the end."""
    import pty

    master, slave = pty.openpty()
    command = [sys.executable, "-m", "fedlga.cli", "run", *FAST, "--rounds", "40", "--out", "r"]
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
    with subprocess.Popen(command, stdout=slave, stderr=slave, cwd=tmp_path, env=environment) as process:
        os.close(slave)
        seen = b""
        while True:
            try:
                block = os.read(master, 4096)
            except OSError:
                break
            if not block:
                break
            seen += block
    os.close(master)
    assert process.returncode == 0
    text = seen.decode()
    for word in ("round ", "accuracy", "loss", "slow", "run folder: r"):
        assert word in text
    assert text.count("accuracy") > 3, "live: drawn more than once"
