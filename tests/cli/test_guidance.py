"""Wrong calls that are nearly right: what was meant is said, in one line, and nothing is written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from commands import FAST
from fedlga.core.registry import SEAMS, built_in_owners
from fedlga.core.settings import find_similar, suggest
from fedlga.core.words import ANSWERS, NAMES
from fedlga.experiments.config import experiment_fields

MEANT = {
    "a field as an option": (
        ["run", "--lr", "0.1"],
        "no option --lr; any field goes with --set: --set lr=0.1",
    ),
    "with an equals sign": (["run", "--epochs=3"], "--set epochs=3"),
    "another library's option": (["run", "--learning-rate", "0.1"], "--set lr=0.1"),
    "ours under another name": (
        ["run", "--num-rounds", "3"],
        "--num-rounds; did you mean --rounds?",
    ),
    "a setting of a method": (["run", "--mu", "1"], "--set mu=1"),
    "a GPU": (["run", "--gpu"], "where tensors are computed is device: cpu, cuda"),
    "a slip": (["run", "--metod", "fedavg"], "did you mean --method?"),
    "nothing near": (["run", "--zzz"], "fedlga run --help lists them"),
    "a field before the command": (["--lr", "0.1"], "no option --lr; it is for a command, such as fedlga run"),
    "an option before it": (["--preset", "digits"], "no option --preset; it is for a command, such as fedlga run"),
    "no option of this command": (["report", "x", "--lr", "1"], "fedlga report --help lists them"),
    "a preset as a file": (["run", "digits"], "there is no file 'digits'; did you mean --preset digits?"),
    "a dataset as a file": (["run", "cifar-10"], "did you mean --dataset cifar-10?"),
    "a method of others as a file": (["run", "fedadam"], "it is method fedavg with server_optimizer=adam"),
    "a dataset that is not there": (["run", "mnist"], "'mnist': it is not there; there is fashion-mnist"),
    "a grid of others' words": (
        ["tune", "--methods", "fedavg", "--grid", "learning_rate=1,2"],
        "--grid: no arm has a setting 'learning_rate'; did you mean 'lr'?",
    ),
    "a list without commas": (["compare", "--methods", "fedavg", "fedlga"], "'fedlga' is a method: --method fedlga"),
    "the same with a preset": (
        ["compare", "--preset", "digits", "--methods", "fedavg", "fedlga"],
        "there is no file 'fedlga'; 'fedlga' is a method: --method fedlga, or a list: --methods A,B",
    ),
    "a preset and a file": (
        ["run", "mine.py", "--preset", "digits"],
        "--preset: got 'digits' with 'mine.py'; it takes one of the two",
    ),
    "no folder of a report": (["report"], "Missing argument 'DIR...'; for example: fedlga report "),
    "no shell": (["completion"], "Missing argument '{bash|zsh|fish}'. Choose from: bash, zsh, fish; for example: "),
    "learning_rate": (["run", "--set", "learning_rate=1"], "did you mean 'lr'?"),
    "num_clients": (["run", "--set", "num_clients=1"], "did you mean 'devices'?"),
    "clients": (["run", "--set", "clients=1"], "did you mean 'devices'?"),
    "local_epochs": (["run", "--set", "local_epochs=1"], "did you mean 'epochs'?"),
    "optimizer": (["run", "--set", "optimizer=adam"], "there is local_optimizer"),
    "alpha of Dirichlet": (
        ["run", "--set", "partition=dirichlet", "--set", "alpha=1"],
        "did you mean 'partition_alpha'?",
    ),
    "alpha of FedDyn": (["run", "--set", "alpha=1"], "it is a setting of method 'feddyn'"),
    "fedadam": (["run", "--method", "fedadam"], "it is method fedavg with server_optimizer=adam"),
    "what is not there": (["run", "--set", "noise_multiplier=1"], "differential privacy is not there"),
    "no distant guess": (["run", "--set", "qwerty=1"], "`fedlga fields` lists what there is"),
    "a command of others": (["train"], "there is no command 'train'; did you mean 'run'?"),
    "a field twice": (["run", "--set", "lr=1", "--set", "lr=2"], "--set: got lr twice; it takes each field once"),
    "an option and a field": (["run", "--rounds", "3", "--set", "rounds=2"], "--set: got rounds also with --rounds"),
    "an empty option": (["run", "--preset", ""], "--preset: got an empty text"),
    "an empty folder": (["run", "--out="], "--out: got an empty text"),
    "an empty argument": (["report", ""], "argument: got an empty text"),
    "an empty value": (["run", "--set", "lr="], "lr: got ''; it takes a number above 0"),
    "no rounds": (["run", "--rounds", "0"], "rounds: got 0; it takes a whole number of at least 1"),
    "no rounds of an audit": (["audit", "--rounds", "0"], "rounds: got 0; it takes a whole number of at least 1"),
    "a file as a run's folder": (["run", "--out", "r.pdf"], "--out: got 'r.pdf'; it takes a folder"),
    "a file as a comparison's": (["compare", "--out", "r.csv"], "--out: got 'r.csv'; it takes a folder"),
    "a picture as an audit": (["audit", "--out", "r.png"], "--out: got 'r.png'; it takes a file that ends in .csv"),
    "a folder that takes no files": (["run", "--out", "/proc/none"], "--out: cannot write to '/proc/none'"),
}


@pytest.mark.parametrize(("words", "message"), MEANT.values(), ids=MEANT)
def test_what_was_meant_is_said_in_one_line(fedlga, tmp_path, words, message):
    code, out, err = fedlga(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_every_word_leads_to_something_that_is_there():
    fields = {f.name for f in experiment_fields()}
    names = {name for seam in SEAMS.values() for name in seam.names}
    commands = {"run", "compare", "tune", "report", "list", "doctor"}
    for word, name in NAMES.items():
        assert name in fields | names | commands or built_in_owners(name), word
        assert word not in fields, f"{word} is a field of ours"
    assert not fields & set(ANSWERS)


def test_a_distant_guess_is_worse_than_none():
    assert find_similar("num_clients", ["augment", "clip"]) is None
    assert suggest("fedadagrad", ["fedavg"]) == "it is method fedavg with server_optimizer=adagrad"
    assert suggest("fdavg", ["fedavg", "fedprox"]) == "did you mean 'fedavg'?"


def test_lists_may_have_spaces(fedlga):
    words = ("--methods", "fedavg, fedprox", "--seeds", "0, 2 - 3", "--rounds", 1, "--out", "c")
    code, out, err = fedlga("compare", *FAST, *words)
    assert (code, err) == (0, "")
    assert out.startswith("6 runs into c\n")


def test_a_run_cannot_be_continued_to_fewer_rounds_than_it_has(fedlga):
    assert fedlga("run", *FAST, "--rounds", 3, "--out", "r")[0] == 0
    before = Path("r/experiment.toml").read_bytes()
    code, _, err = fedlga("run", "--resume", "r", "--rounds", 2)
    assert (code, err) == (2, "fedlga: --resume: got rounds 2, and 3 are done; it takes 3 or more\n")
    assert Path("r/experiment.toml").read_bytes() == before


def test_a_folder_of_runs_is_not_taken_for_one_run(fedlga):
    """A run in runs/ itself would hide those inside it from every report."""
    assert fedlga("run", *FAST, "--rounds", 1, "--out", "runs/first")[0] == 0
    for words in (("run", *FAST), ("compare", *FAST, "--seeds", "0"), ("run", *FAST, "--seed", 1)):
        code, out, err = fedlga(*words, "--rounds", 1, "--out", "runs")
        assert (code, out) == (2, "")
        assert "--out: 'runs' holds other runs, such as 'first'" in err
        assert "take a folder of its own, such as 'runs/NAME'" in err
    assert [path.name for path in Path("runs").iterdir()] == ["first"]
    Path("notes/old").mkdir(parents=True)
    Path("notes/old/experiment.toml").write_text("rounds = 3\n")  # somebody's own file
    assert fedlga("run", *FAST, "--rounds", 1, "--out", "notes")[0] == 0


def test_continuing_a_run_that_is_over_says_so(fedlga):
    assert "nothing was left to do" not in fedlga("run", *FAST, "--rounds", 1, "--out", "r")[1]
    code, out, _ = fedlga("run", "--resume", "r")
    assert (code, "the run was over before: nothing was left to do" in out) == (0, True)
    assert "nothing was left to do" not in fedlga("run", "--resume", "r", "--rounds", 2)[1]


def test_a_comparison_in_which_all_runs_diverged_failed(fedlga):
    words = ("--rounds", 2, "--seeds", "0", "--methods", "fedavg", "--set", "lr=1e30", "--out", "c")
    code, out, err = fedlga("compare", "--preset", "digits", *words)
    assert (code, err) == (1, "")
    assert "every run diverged" in out


OUT = ("--out", "r")


@pytest.mark.parametrize("words", [("run",), ("compare",), ("tune", "--stragglers", "keep", "--grid", "lr=0.1")])
def test_nothing_is_computed_before_the_folder_can_be_written(fedlga, monkeypatch, tmp_path, words):
    def fill(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def compute(*_: object, **__: object) -> None:
        raise AssertionError("data is loaded")

    monkeypatch.setattr("tempfile.TemporaryFile", fill)
    monkeypatch.setattr("fedlga.experiments.simulation.load_data", compute)
    code, out, err = fedlga(*words, *FAST[:2], *OUT)
    assert (code, out, err) == (2, "", "fedlga: --out: cannot write to 'r' (No space left on device)\n")
    assert list(tmp_path.iterdir()) == []
