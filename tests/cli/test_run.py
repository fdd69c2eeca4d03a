"""fedlga run: what it prints and writes, and that a wrong call costs one line and leaves nothing behind."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from commands import ENDLESS, FAST, start, wait_for_lines, wait_until
from damaged_records import DAMAGES
from fedlga.core.registry import create
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.run import run_and_record
from fedlga.report.page import collect_runs
from hard_experiment import PAIRS
from run_folders import OLD_RUNS, read_everything, read_lines_without_seconds


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
    "unknown table": (["--set", "fedprx.mu=1"], "fedprx: there is no such field or table; did you mean 'fedprox'?"),
    "K > N": (["--set", "cohort=60"], "cohort: got 60; it takes at most the 50 devices"),
    "P > classes": (["--set", "classes_per_device=12"], "classes_per_device: got 12; it takes 1 to 10"),
    "rho": (["--set", "rho=2"], "rho: got 2.0; it takes a number from 0 to 1"),
    "tau_max > E": (["--set", "tau_max=9"], "tau_max: got 9; it takes 1 to epochs, which is 5"),
    "E < 1": (["--set", "epochs=0"], "epochs: got 0; it takes a whole number of at least 1"),
    "negative rate": (["--set", "lr=-1"], "lr: got -1.0; it takes a number above 0"),
    "negative global rate": (["--set", "eta_g=-1"], "sgd.eta_g: got -1.0; it takes a number above 0"),
    "another policy for fedlga": (["--stragglers", "keep"], "stragglers: got 'keep'; method fedlga takes complete"),
    "a setting of another fleet": (
        ["--set", "fleet=equal", "--set", "rho=0.9"],
        "rho: it is a setting of fleet 'paper', and this experiment's is 'equal'; set fleet=paper too, or paper.rho",
    ),
    "a setting that moved": (
        ["--set", "fedavg.eta_g=2"],
        "fedavg.eta_g: eta_g belongs to the server optimiser now, for every method: use sgd.eta_g",
    ),
    "an option that is none": (["--quiet"], "there is no option --quiet; fedlga run --help lists them"),
    "not a number": (["--rounds", "many"], "is not a valid integer"),
    "file and preset": (["e.toml", "--preset", "paper"], "--preset: got 'paper' with 'e.toml'"),
    "no such file": (["none.toml"], "experiment: there is no file 'none.toml'; it takes EXPERIMENT.toml or FILE.py"),
    "resume of nothing": (["--resume", "nowhere"], "--resume: 'nowhere' holds no run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_costs_one_line_and_leaves_nothing(fedlga, tmp_path, case):
    words, message = WRONG[case]
    code, out, err = fedlga("run", *words)
    assert code == 2
    assert out == ""
    assert err.startswith("fedlga: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "fleet=trace", "--set", "trace=t.csv"], "there is no device 99; it takes 0 to 19"),
        (["--set", "model=models_for_tests:too_few_scores"], "scores 9 classes, and the dataset has 10"),
        (
            ["--set", "model=models_for_tests:with_batch_norm", "--set", "batch_size=1"],
            "BatchNorm needs two in a batch",
        ),
        (["--set", "devices=4", "--set", "cohort=3"], "hold 8 of 10 classes"),
        (["--set", "devices=2000", "--set", "partition=iid"], "devices: got 2000; the dataset has 1438 examples"),
    ],
)
def test_what_only_the_data_tells_leaves_nothing_either(fedlga, words, message):
    Path("t.csv").write_text("round,device,epochs\n1,99,2\n")
    for command in ("run", "compare"):
        code, _, err = fedlga(command, *FAST, *words, "--out", "r")
        assert code == 2
        assert err.count("\n") == 1
        assert message in err
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

    def refuse(**_: object) -> None:  # root may write anywhere: answer as for another user
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    code, _, err = fedlga("run", *FAST, "--out", "locked/run")
    assert code == 2
    assert "cannot write to" in err
    assert err.count("\n") == 1
    assert list(Path("locked").iterdir()) == []


def test_a_damaged_data_file(fedlga, tmp_path):
    folder = tmp_path / "no data" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name in create("dataset", "fashion-mnist").files:
        (folder / name).write_bytes(b"\x1f\x8b\x08 not what it was")
    code, _, err = fedlga("run", "--backend", "serial")
    assert code == 2
    assert "is damaged; delete it and fetch it again" in err
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_an_audited_run_says_how_close_it_came(fedlga):
    _, out, _ = fedlga("run", *FAST, "--rounds", 4, "--audit", "--out", "r")
    assert "approximation" in out
    summary = json.loads(Path("r/summary.json").read_text())
    assert summary["best_scale_error"] <= summary["approximation_error"]
    line = json.loads(Path("r/rounds.jsonl").read_text().splitlines()[0])
    assert {"error", "sent", "completed", "true_scales"} <= line["audit"].keys()


@pytest.mark.slow
def test_a_killed_run_leaves_no_shared_memory_behind(tmp_path):
    """The workers outlive the process that was killed, see their pipe close, tidy up and end."""
    temporary = tmp_path / "temp"
    temporary.mkdir()
    words = ("run", *FAST, "--backend", "pool", "--rounds", ENDLESS, "--out", "r")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": None}
    process = start(*words, folder=tmp_path, env={**os.environ, "TMPDIR": str(temporary)}, **quiet)
    try:
        wait_for_lines(tmp_path / "r" / "rounds.jsonl", 2)
        mapped = re.findall(r"/\S*/fedlga-[^/\s]+", Path(f"/proc/{process.pid}/maps").read_text())
        folders = {Path(folder) for folder in mapped} | set(temporary.glob("fedlga-*"))
        assert any(folder.is_dir() for folder in folders)
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any(folder.exists() for folder in folders), "the workers remove their folders")


@pytest.mark.slow
def test_a_method_and_a_model_in_the_users_own_folder(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from torch import nn\n"
        "from fedlga import Direction, Local, Method, setting\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Method):\n"
        "    pull: float = setting(0.1, 'how strongly devices are held back', least=0)\n"
        "    def local(self, assignment, memory):\n"
        "        return Local(pull=self.pull)\n"
        "    def direction(self, state, sums, contributions):\n"
        "        return Direction([sums['delta'].mean()])\n"
        "def model(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
    )
    command = [str(Path(sys.executable).with_name("fedlga")), "run", *FAST, "--rounds", "2", "--backend", "pool"]
    words = ["--method", "mine:Mine", "--set", "pull=0.2", "--set", "model=mine:model", "--out", "r"]
    done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    written = (tmp_path / "r" / "experiment.toml").read_text()
    assert "pull = 0.2" in written


# field, class, its setting with another value than its default
PLUGINS = [
    ("method", "Pulled", "pull", 0.9),
    ("stragglers", "KeepHalf", "part", 0.25),
    ("aggregation", "Clipped", "largest", 0.001),
    ("server_optimizer", "Careful", "largest_step", 0.001),
    ("fleet", "OddDevices", "done", 0.2),
    ("partition", "Cards", "at_a_time", 3),
    ("dataset", "Stripes", "noise", 200),
]


@pytest.mark.parametrize(("field", "name", "setting", "value"), PLUGINS)
def test_a_class_of_the_users_own_has_settings_of_its_own(fedlga, field, name, setting, value):
    path = f"plugins_for_tests:{name}"
    method = () if field == "method" else ("--set", "method=fedavg")
    words = ("run", *FAST, "--rounds", 3, *method, "--set", f"{field}={path}")
    assert fedlga(*words, "--out", "default")[0] == 0
    code, _, err = fedlga(*words, "--set", f"{setting}={value}", "--out", "bare")
    assert (code, err) == (0, "")
    assert fedlga(*words, "--set", f"{path}.{setting}={value}", "--out", "dotted")[0] == 0
    default, bare, dotted = (read_lines_without_seconds(Path(folder)) for folder in ("default", "bare", "dotted"))
    assert bare == dotted
    assert bare != default, "the setting counts"
    written = Experiment.load(Path("bare/experiment.toml"))
    assert written.options[path][setting] == value
    for folder in ("bare", "default"):
        assert fedlga("run", "--resume", folder, "--rounds", 4)[0] == 0
    labels = [group.label for group in collect_runs([Path("bare"), Path("default")])]
    assert f"{setting} {value}" in labels[0], "on a page, it is in what they differ"
    code, out, err = fedlga("run", *FAST, *method, "--set", f"{field}={path}", "--set", f"{setting}=x")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{path}.{setting}: got 'x'" in err
    code, out, err = fedlga("run", *FAST, "--set", "method=fedavg", "--set", f"{setting}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"fedlga: {setting}: there is no such field; "), "it is not in use"


@pytest.mark.slow
def test_all_kinds_of_own_classes_at_once_in_a_pool_and_in_a_comparison(fedlga):
    words = [word for field, name, *_ in PLUGINS[2:] for word in ("--set", f"{field}=plugins_for_tests:{name}")]
    words += [word for _, _, setting, value in PLUGINS for word in ("--set", f"{setting}={value}")]
    words += ["--set", "model=plugins_for_tests:linear", "--rounds", 2, "--backend", "pool"]
    own = ("plugins_for_tests:Pulled", "plugins_for_tests:KeepHalf")
    code, out, err = fedlga("run", *FAST, *words, "--method", own[0], "--stragglers", own[1], "--out", "r")
    assert (code, err) == (0, "")
    assert f"{own[0]} ({own[1]}), plugins_for_tests:Stripes, seed 0: 5 of 20 devices a round, OddDevices" in out
    options = Experiment.load(Path("r/experiment.toml")).options
    assert {name: options[f"plugins_for_tests:{cls}"][name] for _, cls, name, _ in PLUGINS} == {
        name: value for *_, name, value in PLUGINS
    }
    compared = ("--methods", f"fedavg,{own[0]}", "--stragglers", f"keep,{own[1]}", "--seeds", "0", "--out", "c")
    code, _, err = fedlga("compare", *FAST, *words, *compared)
    assert (code, err) == (0, "")
    assert {p.name for p in Path("c").iterdir() if p.is_dir()} == {
        "fedavg-keep",
        "fedavg-plugins_for_tests.KeepHalf",
        "plugins_for_tests.Pulled-keep",
        "plugins_for_tests.Pulled-plugins_for_tests.KeepHalf",
    }
    assert fedlga("report", "c")[0] == 0


@pytest.fixture(scope="module")
def half_run(tmp_path_factory) -> Path:
    """A run that was stopped after four of six rounds, which no test changes."""
    folder = tmp_path_factory.mktemp("half") / "run"
    experiment = preset("digits").changed({"rounds": 6, "steps_per_epoch": 1, "lr": 0.1, "method": "scaffold"})
    records = run_and_record(experiment, folder)
    list(islice(records, 4))
    records.close()
    return folder


def check_refused(fedlga, message: str) -> None:
    """Assert that the folder r is neither continued nor shown: one line, and every file stays as it is."""
    before = read_everything(Path("r"))
    for words in (["run", "--resume", "r"], ["run", "--resume", "r", "--rounds", 9]):
        code, out, err = fedlga(*words)
        assert (code, out) == (2, "")
        assert err == f"fedlga: {message}\n"
        assert read_everything(Path("r")) == before


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_with_a_damaged_line_is_not_continued(fedlga, half_run, name):
    shutil.copytree(half_run, "r")
    file = Path("r/rounds.jsonl")
    file.write_bytes(DAMAGES[name].damage(file.read_bytes().splitlines(keepends=True)))
    check_refused(fedlga, f"{str(file)!r}: {DAMAGES[name].message}")
    before = read_everything(Path("r"))
    code, out, err = fedlga("report", "r")
    assert (code, out) == (2, "")
    assert err == f"fedlga: {str(file)!r}: {DAMAGES[name].message}\n"
    assert read_everything(Path("r")) == before, "no page either"


def test_a_run_with_fewer_rounds_than_its_checkpoint_is_not_continued(fedlga, half_run):
    shutil.copytree(half_run, "r")
    file = Path("r/rounds.jsonl")
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]))
    before = read_everything(Path("r"))
    code, _, err = fedlga("run", "--resume", "r")
    assert code == 2
    message = "holds 3 rounds, and the checkpoint is of round 4; the files are left as they are"
    assert err == f"fedlga: --resume: {str(file)!r} {message}\n"
    assert read_everything(Path("r")) == before


def test_a_run_that_was_killed_in_a_line_is_continued(fedlga, half_run):
    shutil.copytree(half_run, "r")
    lines = Path("r/rounds.jsonl").read_bytes()
    Path("r/rounds.jsonl").write_bytes(lines + lines[:100])
    code, out, err = fedlga("run", "--resume", "r")
    assert (code, err) == (0, "")
    assert "round 6/6" in out
    written = Path("r/rounds.jsonl").read_bytes()
    assert written.startswith(lines)
    assert [json.loads(line)["round"] for line in written.splitlines()] == [1, 2, 3, 4, 5, 6]


def test_a_run_of_an_earlier_version_is_continued(fedlga):
    shutil.copytree(OLD_RUNS / "half-scaffold", "r")
    code, out, err = fedlga("run", "--resume", "r")
    assert (code, err) == (0, "")
    assert "scaffold (keep), digits, seed 0: 3 of 5 devices a round, 70% slow" in out
    summary = json.loads(Path("r/summary.json").read_text())
    assert (summary["rounds"], summary["finished"]) == (8, True)
    assert fedlga("report", "r")[0] == 0
