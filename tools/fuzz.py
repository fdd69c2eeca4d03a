"""Feed damaged files and arguments to everything that reads them, and report what is not refused in one line.

.venv/bin/python tools/fuzz.py [--seconds N] [--seed S] [--only NAME]

A reader must return something or raise BadInput with a message of one line. Anything else is a mistake: another
exception, a message of several lines, more than a gigabyte of memory, or more than ten seconds. Inputs depend on the
seed and on their number alone, so that a mistake can be found again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import hashlib
import io
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tomli_w
import torch

from fedlga.core.settings import BadInput

MEMORY = 1 << 30  # bytes that one input may take
LONGEST = 10  # seconds that one input may take
DEEP = 5000  # levels of nesting: more than Python's limit of recursion
SHRINKS = 300  # tries to make an input smaller that was not refused
SHRINKING = 5.0  # seconds that they may take, give or take one try

NUMBERS = [0, -1, 1, 2, 7, 255, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30, -(10**30), 10**400, 0.5, -0.0]
NUMBERS += [1e308, 1e-320]
NOT_FINITE = [math.inf, -math.inf, math.nan]
TEXTS = ["", " ", "\n", "a\nb", "\r", "\0", "\u2028", "\x1b[31m", "\u202e", "é", "ß", "\u0663", "²", "𝟙"]
TEXTS += ["\U0001f40d", "\ufeff", "../..", "/etc/passwd", "a" * 5000, "%s%n", "{x}", "nan", "inf"]
TEXTS += ["1e999", "9" * 5000, "true", "null", "os:system", "builtins:print", "builtins:dict"]
TEXTS += ["fedlga.core.settings:BadInput", "fedlga.cli.__main__:x", ":", "::", ".", ".x:y", "mlp"]
TEXTS += ["fedprox", "adam", "own", "cpu:99", "cuda:-1"]
# Text of several languages of values, to be put into a file at any place.
TOKENS = ["[", "]", "{", "}", '"', "'", '"""', ",", "=", ".", ":", "\n", "\r", "#", "-", "\\", "\\u0000"]
TOKENS += ["\\ud800", "null", "true", "nan", "inf", "-inf", "NaN", "Infinity", "1e400", "0x10", "1_000"]
TOKENS += ["1979-05-27", "1979-05-27T07:32:00Z", "9" * 25, "9" * 5000, "-1", "0.1", "[[]]", "{}", "\0"]
TOKENS += ["\ufeff", "\u2028", "²", "٣"]


class Hung(BaseException):
    """An input that took too long. Not an Exception, so that no reader catches it."""


@dataclass(frozen=True)
class Mutator:
    """Random changes of bytes, texts and nested values."""

    rng: random.Random

    def bytes(self, data: bytes) -> bytes:
        """Return damaged bytes: flipped, cut off, with slices deleted, doubled or replaced."""
        changed = bytearray(data)
        for _ in range(self.rng.choice([1, 1, 1, 2, 4, 16])):
            at, end = self._slice(len(changed))
            match self.rng.randrange(7):
                case 0 | 1 if changed:
                    changed[min(at, len(changed) - 1)] ^= 1 << self.rng.randrange(8)
                case 2:
                    del changed[at:]
                case 3:
                    del changed[at:end]
                case 4:
                    changed[at:at] = changed[at:end]
                case 5:
                    changed[at:end] = self.rng.randbytes(min(end - at, 64))
                case _:
                    changed[at:at] = self.rng.choice([b"\0", b"\xff", b"\xff" * 8, b"\xc3", b"\n", b"\r\n", b'"'])
        return bytes(changed)

    def text(self, text: str) -> str:
        """Return a damaged text: as bytes are, and with tokens of TOML, JSON and CSV at random places."""
        for _ in range(self.rng.choice([1, 1, 2, 3])):
            at, end = self._slice(len(text))
            match self.rng.randrange(7):
                case 0:
                    text = text[:at]
                case 1:
                    text = text[:at] + text[end:]
                case 2:
                    text = text[:end] + text[at:end] + text[end:]
                case 3:
                    text = text[:at] + self.rng.choice(TOKENS) + text[at:]
                case 4:
                    text = text[:at] + self.rng.choice(TOKENS) + text[end:]
                case 5:
                    text = text[:at] + self.rng.choice(TEXTS) + text[at + 1 :]
                case _:
                    text = (
                        text[:at]
                        + chr(self.rng.choice([self.rng.randrange(128), self.rng.randrange(0xD800)]))
                        + text[at:]
                    )
        return text

    def _slice(self, length: int) -> tuple[int, int]:
        at = self.rng.randrange(length + 1)
        return at, min(length, at + self.rng.choice([1, 1, 2, 4, 16, 64, 1000]))

    def value(self, *, finite: bool = False, depth: int = 0) -> Any:
        """Return a value of a random type; `finite` for formats without infinities and None."""
        match self.rng.randrange(10 if depth < 3 else 6):  # noqa: PLR2004
            case 0 | 1:
                return self.rng.choice(NUMBERS if finite else [*NUMBERS, *NOT_FINITE])
            case 2 | 3:
                return self.rng.choice(TEXTS)
            case 4:
                return self.rng.random() < 0.5  # noqa: PLR2004
            case 5:
                return self.rng.choice([[], {}, ""] if finite else [None, [], {}])
            case 6 | 7:
                return [self.value(finite=finite, depth=depth + 1) for _ in range(self.rng.randrange(4))]
            case 8:
                return self.nested(self.rng.choice([3, 50]))
            case _:
                return {
                    self.rng.choice(TEXTS): self.value(finite=finite, depth=depth + 1)
                    for _ in range(self.rng.randrange(3))
                }

    def nested(self, levels: int) -> Any:
        """Return lists or tables inside each other."""
        value: Any = []
        for _ in range(levels):
            value = [value] if self.rng.randrange(2) else {"a": value}
        return value

    def tree(self, tree: Any, *, finite: bool = False) -> Any:
        """Return nested values with one to three of them replaced, removed, doubled or renamed."""
        changed = json.loads(json.dumps(tree))
        for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
            places = list(_places(changed))
            if not places:
                return self.value(finite=finite)
            holder, key = self.rng.choice(places)
            match self.rng.randrange(8):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, dict):
                    holder[self.rng.choice([*TEXTS, *holder])] = holder.pop(key)
                case 2 if isinstance(holder, dict):
                    holder[self.rng.choice(TEXTS)] = self.value(finite=finite)
                case 3 if isinstance(holder, list):
                    holder += holder[: self.rng.choice([1, 10])]
                case 4 if isinstance(holder[key], str):
                    holder[key] = self.text(holder[key])
                case 5 if isinstance(holder[key], int | float):
                    number = holder[key]
                    half = 0.5 if abs(number) > 2**53 else number + 0.5  # a large int cannot become a float
                    holder[key] = self.rng.choice([-number, number + 1, str(number), half])
                case _:
                    holder[key] = self.value(finite=finite)
        return changed

    def toml(self, text: str) -> str:
        """Return a damaged TOML text; most are still TOML, with other values."""
        if self.rng.randrange(3) == 0:
            return self.text(text)
        with contextlib.suppress(Exception):  # some values cannot be written
            return tomli_w.dumps(self.tree(tomllib.loads(text), finite=True))
        return self.text(text)

    def json(self, text: str) -> str:
        """Return a damaged JSON text; most are still JSON, with other values."""
        if self.rng.randrange(3) == 0:
            return self.text(text)
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(self.tree(json.loads(text)))
        return self.text(text)

    def tensors(self, content: bytes) -> bytes:
        """Return a damaged safetensors file; some have a header that can be read, with other values."""
        if self.rng.randrange(2):
            return self.bytes(content)
        size = int.from_bytes(content[:8], "little")
        header = self.tree(json.loads(content[8 : 8 + size]))
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _places(tree: Any) -> Generator[tuple[Any, Any]]:
    """Yield every place of nested values: what holds it, and its key."""
    for key, value in list(
        tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else []
    ):
        yield tree, key
        yield from _places(value)


Input = Any  # a text, bytes, or values; a tuple (name, content) is a file


@dataclass(frozen=True)
class Reader:
    """Something that reads: how to make an input for it, and how to have it read."""

    name: str
    make: Callable[[Mutator], Input]
    read: Callable[[Input, Path], object]
    corners: Sequence[Input] = ()  # tried first
    refusals: tuple[type[Exception], ...] = (BadInput,)
    cost: int = 1  # of an input, compared with most readers': tests try fewer


READERS: list[Callable[[], Reader]] = []


def reader(make: Callable[[], Reader]) -> Callable[[], Reader]:
    """Add a reader. It is made when it is needed first: some need a run folder."""
    cached = functools.cache(make)
    READERS.append(cached)
    return cached


# What the readers read before it is damaged


@functools.cache
def scratch() -> Path:
    """Return a folder for this process, which is removed in the end."""
    import atexit

    folder = Path(tempfile.mkdtemp(prefix="fedlga-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def small_experiment(**changes: Any) -> Any:
    """Return an experiment that takes a moment."""
    from fedlga.experiments.presets import preset

    small = {"rounds": 2, "devices": 5, "cohort": 2, "epochs": 2, "steps_per_epoch": 1, "backend": "serial"}
    return preset("digits").changed({**small, "fast": False, **changes})


@functools.cache
def digits() -> Any:
    """Return the data of all runs here."""
    from fedlga.experiments.simulation import load_data

    return load_data(small_experiment(), None)


@functools.cache
def run_folder(kind: str) -> Path:
    """Return the folder of a run of two rounds; nobody changes it."""
    from fedlga.experiments.run import run_and_record

    changes: dict[str, dict[str, Any]] = {
        "rounds": {"method": "scaffold"},
        "buffered": {
            "method": "fedavg",
            "stragglers": "keep",
            "schedule": "buffered",
            "fleet": "speeds",
            "deadline": 2.0,
        },
    }
    folder = scratch() / f"run-{kind}"
    for _ in run_and_record(small_experiment(**changes[kind]), folder, data=digits()):
        pass
    return folder


def copy_with(folder: Path, name: str, content: bytes | str, into: Path) -> Path:
    """Return a copy of a folder in which one file has another content."""
    copy = into / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    write(copy / name, content)
    return copy


def write(file: Path, content: bytes | str) -> Path:
    """Write a file; a text may hold what UTF-8 does not have."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return file


def deep(start: str, end: str, before: str = "", after: str = "") -> str:
    """Return a text with something nested deeply."""
    return f"{before}{start * DEEP}{end * DEEP}{after}"


HUGE = "9" * 5000  # more digits than Python turns into an int
DEEP_VALUES = [deep("[", "]", "lr = "), deep("{a=", "}", "lr = "), "a" + ".a" * DEEP + " = 1", f"lr = {HUGE}"]
DEEP_VALUES += [f"seed = {HUGE[:400]}", "[" + "a." * DEEP + "a]", "lr = 1e999", "lr = nan", '"a\\nb" = 1']
DEEP_VALUES += ["method = 3", "method = []", "fleet = {}", "options = 1", "options = []", "[options.fedavg.x]\ny = 1"]
DEEP_VALUES += ['method = "os:system"', 'model = "os:system"', 'dataset = "os:system"', 'task = "os:system"']
DEEP_VALUES += ['task = "a\\u0000b.py"', 'task = "' + "a" * 5000 + '.py"', 'fleet = "fedlga.cli.__main__:x"']
DEEP_VALUES += ["lr = 1979-05-27", "rounds = 1e300", "devices = 1e18", '[options."a\\nb"]\nx = 1']


# Experiments and arguments


def use_experiment(e: Any) -> None:
    """Do what every command does with an experiment before it starts."""
    from fedlga.experiments.config import Experiment

    Experiment.from_toml(e.resolved().to_toml())
    assert e.describe_fleet()


@reader
def experiment_toml() -> Reader:
    """Experiment.from_toml, of a text."""
    from fedlga.experiments.config import Experiment
    from fedlga.experiments.presets import PRESETS, preset

    texts = [preset(name).to_toml() for name in PRESETS] + [preset("digits").resolved().to_toml()]
    return Reader(
        "experiment.toml",
        lambda m: m.toml(m.rng.choice(texts)),
        lambda text, _: use_experiment(Experiment.from_toml(text)),
        DEEP_VALUES,
    )


@reader
def experiment_file() -> Reader:
    """Experiment.load, of a file."""
    from fedlga.experiments.config import Experiment

    content = small_experiment().resolved().to_toml().encode()
    return Reader(
        "Experiment.load",
        lambda m: m.bytes(content),
        lambda data, folder: Experiment.load(write(folder / "experiment.toml", data)),
        [b"", b"\xff", b"\xef\xbb\xbf" + content, *(text.encode() for text in DEEP_VALUES)],
    )


def _setting_text(m: Mutator) -> str:
    from fedlga.core.registry import SEAMS
    from fedlga.core.settings import settings_of
    from fedlga.experiments.config import experiment_fields

    names = [f.name for f in experiment_fields()]
    owners = [name for seam in SEAMS.values() for name in seam.names]
    key = m.rng.choice([*names, *names, *(f"{owner}.{m.rng.choice(names)}" for owner in owners), *TEXTS])
    if m.rng.randrange(4) == 0:
        from fedlga.core.registry import find

        kind = m.rng.choice([kind for kind, seam in SEAMS.items() if seam.base])
        owner = m.rng.choice(list(SEAMS[kind].names))
        if settings := [f.name for f in settings_of(find(kind, owner))]:
            key = f"{owner}.{m.rng.choice(settings)}"
    value = m.value()
    with contextlib.suppress(Exception):
        value = tomli_w.dumps({"v": value}).partition("=")[2].strip()
    return f"{key}={value}" if m.rng.randrange(4) else m.text(f"{key}={value}")


@reader
def set_option() -> Reader:
    """--set KEY=VALUE, up to three of them."""
    from fedlga.cli.options import collect_changes

    base = small_experiment()
    corners = ["model=os:system", "task=os:system", "task=os", "task=", "task=.", "task=a..b", "task=\0.py"]
    corners += ["=", "a", ""]
    corners += ["method=fedlga.cli.__main__:x", "model=builtins:print", "x:y.z=1", "builtins:dict.x=1", ".=1"]
    corners += [".a=1", "a.=1"]
    corners += [f"lr={HUGE}", f"seed={HUGE[:400]}", deep("[", "]", "lr="), deep("{a=", "}", "lr="), "lr=1\nmethod=2"]
    corners += ["options=1", "options={}", "options={fedavg=1}", "options.fedavg={x=1}", "_given=1", "task=3"]
    corners += ["method=3"]
    corners += ["device=\0", "device=cuda:99999999999999999999", "device=meta", "dataset=own", "model=own", "metric=\n"]
    return Reader(
        "--set",
        lambda m: [_setting_text(m) for _ in range(m.rng.choice([1, 1, 2, 3]))],
        lambda texts, _: use_experiment(base.changed(collect_changes({}, tuple(texts)))),
        [[text] for text in corners],
    )


@reader
def opened_experiment() -> Reader:
    """The set-up of a run whose settings were accepted: data, partition, fleet, model, and no training."""
    from fedlga.cli.options import collect_changes
    from fedlga.experiments.simulation import simulate

    base = small_experiment()

    def read(texts: list[str], folder: Path) -> None:
        e = base.changed(
            {**collect_changes({}, tuple(texts)), "backend": "serial", "compile": "off", "dataset": "digits"}
        )
        with simulate(e.resolved(), data_dir=folder, data=digits()) as opened:
            assert opened.start is not None

    corners = ["devices=1e12", "devices=100000000", "devices=2000", "cohort=1e15", "resize=1024"]
    corners += ["rounds=1e15", "seed=1e30"]
    corners += ["epochs=1e15", "steps_per_epoch=1e15", "batch_size=1e15", "model=os:system", "model=builtins:print"]
    corners += ["model=builtins:dict", "lr=1e308", "lr_step=1e300", "device=meta", "device=mps"]
    corners += ["device=cuda:7", "device=x"]
    corners += ["seed=18446744073709551616", "seed=340282366920938463463374607431768211456", "partition=own"]
    corners += ["metric=x"]
    pairs = [["partition=dirichlet", f"dirichlet.alpha={v}"] for v in ("1e-300", "1e300", "1e-5")]
    pairs += [["fleet=trace", f"trace={name}"] for name in ('"a\\u0000b"', "x" * 5000, ".", "/dev/null")]
    pairs += [["fleet=population", "deadline=1", 'figures="a\\u0000b"']]
    pairs += [["fleet=speeds", "deadline=1", f"speeds.sigma={v}"] for v in ("1e300", "0")]
    pairs += [
        ["fleet=population", "deadline=1", f"{name}=1e300"] for name in ("speed_median", "download_sigma", "upload")
    ]
    return Reader("simulate", lambda m: [_setting_text(m)], read, [*([c] for c in corners), *pairs], cost=3)


@reader
def seeds() -> Reader:
    """--seeds."""
    from fedlga.experiments.parsing import parse_seeds

    corners = ["0-99999999999", "0-99999999", f"0-{HUGE}", HUGE, "²", "0-²", "٣", "-", "", ",", "5-1", "1-2-3"]
    corners += ["0,0", "\n"]
    return Reader(
        "--seeds", lambda m: m.text(m.rng.choice(["0-4", "0,3,7", "0-2,5"])), lambda t, _: parse_seeds(t), corners
    )


@reader
def arm() -> Reader:
    """--arm, and the experiments of a comparison with it."""
    from fedlga.experiments.arms import parse_arm
    from fedlga.experiments.compare import Plan

    def read(text: str, folder: Path) -> None:
        Plan(small_experiment(), {}, ["fedavg"], [], [0, 1], more_arms=[parse_arm(text)]).runs(folder)

    texts = ["fedavg keep lr=0.1", "fedprox mu=0.1", "fedlga complete"]
    texts += ["fedavg keep server_optimizer=adam adam.eta_g=1"]
    corners = ["", "fedavg x:y", "os:system", f"fedavg lr={HUGE}", deep("[", "]", "fedavg lr=")]
    corners += ["fedavg a.b=1", "fedavg :=1"]
    return Reader("--arm", lambda m: m.text(m.rng.choice(texts)), read, corners)


@reader
def grid() -> Reader:
    """--grid, and the plan of a search over it."""
    from fedlga.cli.tune import parse_grids
    from fedlga.experiments.arms import Arm
    from fedlga.experiments.criteria import CRITERIA
    from fedlga.experiments.search import grid_points
    from fedlga.experiments.tune import TuningPlan

    def read(texts: list[str], _: Path) -> None:
        arms = [Arm("fedavg", "keep"), Arm("fedprox", "keep")]
        plan = TuningPlan(small_experiment(), arms, parse_grids(texts), CRITERIA["accuracy"], [0, 1], [2])
        assert grid_points(plan.grid_of(arms[0])) is not None

    corners = [["lr=[1"], ["lr=1,1.0"], [f"lr={HUGE}"], ["=1"], ["lr=,"], ["lr=nan"], ["a.b=1"]]
    corners += [["sgd.eta_g=1,2"], ["options=1"]]
    corners += [[deep("[", "]", "lr=")], ["task=os"], ["rounds=1e300,2"], ["lr='a\nb'"], ["fleet=3"], ["method=x"]]
    return Reader(
        "--grid", lambda m: [m.text(m.rng.choice(["lr=0.01,0.03,0.1", "mu=0.1,1", "sgd.eta_g=1"]))], read, corners
    )


@reader
def flower_config() -> Reader:
    """The run configuration of a Flower app."""
    from fedlga.experiments.flower_server import read_experiment

    base = {
        "rounds": 3,
        "lr": 0.1,
        "devices": 4,
        "cohort": 2,
        "method": "fedlga",
        "out": "",
        "resume": False,
        "rho": 0.5,
    }
    corners = [{"experiment": text} for text in DEEP_VALUES] + [{"method": 3}, {"task": 3}, {"fleet": True}]
    return Reader(
        "run-config", lambda m: m.tree(base), lambda v, _: use_experiment(read_experiment(_mapping(v), None)), corners
    )


def _mapping(value: Any) -> dict[str, Any]:
    """Return a flat mapping of plain values: a Flower configuration cannot hold anything else."""
    items = value.items() if isinstance(value, dict) else []
    return {name: v for name, v in items if isinstance(v, str | int | float | bool)}


# Run folders


@reader
def rounds_file() -> Reader:
    """rounds.jsonl: its records, its summary and the page about it."""
    from fedlga.experiments.records import make_frame, read_run
    from fedlga.report.page import collect_runs, make_page

    source = run_folder("rounds")
    lines = (source / "rounds.jsonl").read_text(encoding="utf-8").splitlines()

    def make(m: Mutator) -> str:
        index = m.rng.randrange(len(lines))
        return "\n".join([*lines[:index], m.json(lines[index]), *lines[index + 1 :]]) + "\n"

    def read(text: str, folder: Path) -> None:
        copy = copy_with(source, "rounds.jsonl", text, folder)
        if run := read_run(copy).records:
            json.dumps([record.as_dict() for record in run])
            make_frame(run)
            assert collect_runs([copy])

    assert make_page
    corners = [deep("[", "]") + "\n", deep('{"a":', "1}")[: DEEP * 5] + "\n", "{}\n", "[]\n", "\n"]
    corners += ['{"version": []}\n', "1\n"]
    corners += [f'{{"round": {HUGE}}}\n', lines[0].replace('"round": 1', f'"round": 1, "seconds": {HUGE[:400]}') + "\n"]
    return Reader("rounds.jsonl", make, read, corners, cost=2)


@reader
def report_page() -> Reader:
    """fedlga report, of a folder with a damaged record, summary, partition or experiment: the whole page."""
    from fedlga.report.page import collect_runs, make_page

    source = run_folder("rounds")
    names = ["rounds.jsonl", "summary.json", "partition.json", "experiment.toml"]

    def make(m: Mutator) -> tuple[str, str]:
        name = m.rng.choice(names)
        text = (source / name).read_text(encoding="utf-8")
        if name == "experiment.toml":
            return name, m.toml(text)
        if name == "rounds.jsonl":
            first, second = text.splitlines()
            return name, m.rng.choice([f"{m.json(first)}\n{second}\n", f"{first}\n{m.json(second)}\n"])
        return name, m.json(text)

    def read(file: tuple[str, str], folder: Path) -> None:
        make_page(collect_runs([copy_with(source, *file, folder)]))

    return Reader("fedlga report", make, read, cost=30)


@reader
def report_parts() -> Reader:
    """The parts of the report that read partition.json and summary.json themselves."""
    from fedlga.report.devices import show_partition
    from fedlga.report.page import _versions, collect_runs

    source = run_folder("rounds")

    def make(m: Mutator) -> tuple[str, str]:
        name = m.rng.choice(["summary.json", "partition.json", "partition.json"])
        return name, m.json((source / name).read_text(encoding="utf-8"))

    def read(file: tuple[str, str], folder: Path) -> None:
        groups = collect_runs([copy_with(source, *file, folder)])
        _versions(groups)
        if file[0] == "partition.json":
            show_partition(groups[0])

    corners = [
        ("partition.json", f'{{"counts": {value}}}')
        for value in ("[]", "[1]", "[[]]", '[["a"]]', "[[1],[1,2]]", "[[null]]")
    ]
    corners += [("partition.json", deep("[", "]", '{"counts": ', "}")), ("summary.json", deep("[", "]"))]
    corners += [("partition.json", f'{{"counts": [[{value}]]}}') for value in ("-1", "1e999", "1e30", HUGE[:400])]
    corners += [("summary.json", '{"versions": {"torch": []}}'), ("summary.json", '{"versions": {"a": 1}}')]
    return Reader("parts of the report", make, read, corners, cost=6)


@reader
def watched_run() -> Reader:
    """What `fedlga watch` and `fedlga fleet monitor` follow: rounds.jsonl and experiment.toml, while others write."""
    from fedlga.experiments.monitor import RunTotals, count_devices
    from fedlga.report.watch.feed import Feed

    source = run_folder("rounds")
    lines = (source / "rounds.jsonl").read_text(encoding="utf-8").splitlines()

    def make(m: Mutator) -> tuple[str, str]:
        if m.rng.randrange(4) == 0:
            return "experiment.toml", m.toml((source / "experiment.toml").read_text(encoding="utf-8"))
        index = m.rng.randrange(len(lines))
        return "rounds.jsonl", "\n".join([*lines[:index], m.json(lines[index]), *lines[index + 1 :]]) + "\n"

    def read(file: tuple[str, str], folder: Path) -> None:
        copy = copy_with(source, *file, folder)
        feed = Feed([copy.parent])
        feed.read_since("", 0, 0).encode()
        (feed.describe_devices(0) or "").encode()
        totals = RunTotals()
        totals.read(copy / "rounds.jsonl")
        if totals.last is not None:
            count_devices(totals.last)
            json.dumps([totals.metrics, totals.devices, totals.last.seconds + totals.seconds])

    record = json.loads(lines[0])
    changes = [{"steps": [1]}, {"steps_asked": []}, {"seconds": 10**400}, {"device_seconds": {"0": None}}]
    changes += [{"note": "\ud800"}, {"scales": {"0": 10**400}}, {"accuracy": 10**400}, {"bytes_up": 10**400}]
    changes += [
        {"used": 5},
        {"metrics": []},
        {"staleness": {"0": None}},
        {"devices": [10**400]},
        {"refused": {"0": None}},
    ]
    corners = [("rounds.jsonl", json.dumps({**record, **change}) + "\n") for change in changes]
    corners += [("rounds.jsonl", deep("[", "]") + "\n"), ("experiment.toml", "")]
    return Reader("watch and monitor", make, read, corners, cost=2)


@reader
def tracked_file() -> Reader:
    """What a tracker finds in the folder of a run that is continued."""
    from fedlga.experiments.records import read_records
    from fedlga.experiments.tracking import Tracking
    from fedlga.trackers.csv_file import CsvFile

    record = read_records(run_folder("rounds"))[1]
    text = "round,accuracy,loss\n1,0.5,1.0\n2,0.6,0.9\n"

    def read(text: str, folder: Path) -> None:
        write(folder / "tracked.csv", text)
        tracking = Tracking([CsvFile()], fail)
        tracking.start(small_experiment(), folder, 1)
        tracking.log(record)

    def fail(words: str) -> None:  # it refuses at the start, or works
        raise AssertionError(words)

    corners = ["", "round\n", "a\n1\n", "round\nx\n", "round\n1,2,3\n", "round,a\n1\n", "\0", HUGE, f"round\n{HUGE}\n"]
    corners += ["round\n" + "a" * 200_000 + "\n", '"' * 9999, "\ud800"]
    return Reader("tracked.csv", lambda m: m.text(text), read, corners)


@reader
def summary_file() -> Reader:
    """summary.json, versions and partition.json."""
    from fedlga.experiments.records import read_partition, read_summary, read_versions

    source = run_folder("rounds")
    names = ["summary.json", "partition.json"]

    def read(file: tuple[str, str], folder: Path) -> None:
        copy = copy_with(source, *file, folder)
        json.dumps([read_summary(copy), read_versions(copy), read_partition(copy)])

    def make(m: Mutator) -> tuple[str, str]:
        name = m.rng.choice(names)
        return name, m.json((source / name).read_text(encoding="utf-8"))

    corners = [
        (name, text) for name in names for text in (deep("[", "]"), deep("[", "]", '{"a": ', "}"), "[]", "1", HUGE, "")
    ]
    corners += [
        ("summary.json", f'{{"finished": true, "metric": {v}}}') for v in ("[]", "null", '"x"', '"a\\nb"', "1e999")
    ]
    return Reader("summary.json", make, read, corners)


@reader
def resumed_run() -> Reader:
    """A run that is continued from a damaged folder; some checkpoints have checksums that match the damage."""
    from fedlga.experiments.checkpoint import Origin, _make_manifest, _prove
    from fedlga.experiments.run import load_for_resume, run_and_record

    def files(kind: str) -> list[str]:
        source = run_folder(kind)
        inner = [f.relative_to(source).as_posix() for f in sorted((source / "checkpoint").rglob("*")) if f.is_file()]
        return ["experiment.toml", "rounds.jsonl", *inner, *inner]

    def make(m: Mutator) -> tuple[str, str, bytes, bool]:
        kind = m.rng.choice(["rounds", "buffered"])
        name = m.rng.choice(files(kind))
        content = (run_folder(kind) / name).read_bytes()
        consistent = m.rng.randrange(5) > 0
        if name.endswith(".safetensors"):
            return kind, name, _other_metadata(m, content) if m.rng.randrange(2) else m.tensors(content), consistent
        if name.endswith(".json"):
            return kind, name, m.json(content.decode()).encode("utf-8", "surrogatepass"), consistent
        changed = m.toml(content.decode()) if name.endswith(".toml") else m.text(content.decode())
        return kind, name, changed.encode("utf-8", "surrogatepass"), False

    def read(damaged: tuple[str, str, bytes, bool], folder: Path) -> None:
        kind, name, content, consistent = damaged
        copy = copy_with(run_folder(kind), name, content, folder)
        checkpoint = copy / "checkpoint"
        if consistent and checkpoint.is_dir():
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                manifest = json.loads((checkpoint / "manifest.json").read_text(encoding="utf-8"))
                if name.endswith("manifest.json"):
                    manifest["proof"] = _prove(manifest)
                else:
                    origin = Origin(**{f.name: manifest[f.name] for f in fields(Origin)})
                    manifest = _make_manifest(checkpoint, origin)
                write(checkpoint / "manifest.json", json.dumps(manifest))
        e = load_for_resume(copy, {"rounds": 3})
        if e.backend != "serial" or e.devices > 100 or e.compile != "off":  # noqa: PLR2004
            raise BadInput("not run here")
        for _ in run_and_record(e, copy, resume=True, data=digits()):
            pass

    kept = "checkpoint/manifest.json"
    corners = [
        ("rounds", kept, text.encode(), True)
        for text in ("", "[]", "{}", '{"files": []}', deep("[", "]"), deep('{"a":', "}"))
    ]
    whole = json.loads((run_folder("rounds") / kept).read_text(encoding="utf-8"))
    for key in ("files", "experiment", "kernel", "versions"):
        values = (None, [], 1, "x", {"a": None}, [["a", 1]], {"x\ny": 1}, {"../x": "y"})
        corners += [("rounds", kept, json.dumps({**whole, key: value}).encode(), True) for value in values]
    server = "checkpoint/server.safetensors"
    for kind in ("rounds", "buffered"):
        content = (run_folder(kind) / server).read_bytes()
        for key, value in METADATA:
            corners.append((kind, server, _with_metadata(content, {key: value}), True))
        renamed = _with_header(content, lambda h: {("v" if n == "w" else n): v for n, v in h.items()})
        corners.append((kind, server, renamed, True))
        corners.append((kind, "checkpoint/devices/x.safetensors", content, True))
        corners.append((kind, "checkpoint/devices/999.safetensors", content, True))
        corners.append((kind, "checkpoint/devices/1.safetensors", content, True))
        corners.append((kind, "checkpoint/devices/-1.safetensors", content, True))
    return Reader("resumed run", make, read, corners, cost=12)


METADATA = [("round", value) for value in ("-1", "x", "1e3", HUGE, "0", "1", "99", "²")]
METADATA += [("clock", value) for value in ("x", "nan", "inf", "-0x1p+0", "0x1p+99999", "")]
METADATA += [("jobs", value) for value in ("x", "{}", "[1]", "[{}]", "null", '["a"]', "[[]]", deep("[", "]"))]
_JOB = {
    "device": 0,
    "round": 1,
    "steps": 1,
    "steps_asked": 2,
    "started": 0.0,
    "lasts": 1.0,
    "lost": False,
    "slow": False,
}
METADATA += [
    ("jobs", json.dumps([{**_JOB, key: value}])) for key in _JOB for value in (None, "x", [], -1, 99, 1e308, {})
]
METADATA += [("layout", value) for value in ("", "1", "2", "4", "x")]


def _with_header(content: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    size = int.from_bytes(content[:8], "little")
    text = json.dumps(change(json.loads(content[8 : 8 + size]))).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def _with_metadata(content: bytes, metadata: Mapping[str, str]) -> bytes:
    return _with_header(content, lambda h: {**h, "__metadata__": {**h.get("__metadata__", {}), **metadata}})


def _other_metadata(m: Mutator, content: bytes) -> bytes:
    key, value = m.rng.choice(METADATA)
    layout = {"layout": "2"} if m.rng.randrange(2) else {}
    return _with_metadata(content, {**layout, key: m.text(value) if m.rng.randrange(2) else value})


@reader
def comparison_file() -> Reader:
    """comparison.toml, of fedlga compare --resume: the plan, its runs and its tables."""
    from fedlga.experiments.arms import Arm
    from fedlga.experiments.compare import Plan, make_table, read_summaries
    from fedlga.experiments.compare import run_folder as folder_of

    plan = Plan(
        small_experiment(), {"lr": 0.1}, ["fedavg"], ["keep"], [0, 1], more_arms=[Arm("fedprox", "keep", {"mu": 1.0})]
    )
    text = tomli_w.dumps(plan.as_dict())
    source = scratch() / "comparison"
    shutil.copytree(run_folder("rounds"), folder_of(source, plan.arms[0], 0))
    head = text.partition("[base]")[2]

    def read(text: str, folder: Path) -> None:
        loaded = Plan.load(copy_with(source, "comparison.toml", text, folder))
        assert loaded.runs(folder / "copy"), "no runs: cli/compare.py takes the first"
        read_summaries(loaded, folder / "copy")
        make_table(loaded, folder / "copy")

    corners = [*DEEP_VALUES, "", "base = 1", "base = []", "\ufeff", "\0", "\udc80"]
    for line in (
        "methods = 1",
        "methods = [1]",
        "methods = 'x'",
        "policies = [1]",
        "seeds = 'a'",
        "seeds = 5",
        "seeds = [[]]",
    ):
        key = line.partition(" ")[0]
        kept = "\n".join(x for x in ("methods = []", "policies = []", "seeds = [0]") if not x.startswith(key))
        corners.append(f"{kept}\n{line}\n[changes]\n[base]{head}")
    lists = ("[]", "[-1]", "[1e30]", "['x']", "[0.5]", "[true]")
    corners += [f"methods = ['fedavg']\npolicies = []\nseeds = {x}\n[changes]\n[base]{head}" for x in lists]
    corners.append(f"methods = []\npolicies = []\nseeds = [0]\nchanges = 1\n[base]{head}")
    corners.append(
        f"methods = []\npolicies = []\nseeds = [0]\nmore_arms = []\n[changes]\n[base]{head.partition('[[')[0]}"
    )
    return Reader("comparison.toml", lambda m: m.toml(text), read, corners, cost=2)


@reader
def tuning_file() -> Reader:
    """tuning.toml and choice.toml, of fedlga tune --resume and compare --tuned."""
    from fedlga.experiments.arms import Arm
    from fedlga.experiments.criteria import CRITERIA
    from fedlga.experiments.tune import TuningPlan, plan_tuned, read_search, search_folder, write_search

    arms = [Arm("fedavg", "keep"), Arm("fedprox", "keep", {"mu": 1.0})]
    plan = TuningPlan(small_experiment(), arms, {"lr": [0.05, 0.1]}, CRITERIA["accuracy"], [0], [1], 0)
    source = scratch() / "tuning"
    for point in ((("lr", 0.05),), (("lr", 0.1),)):
        for one in arms:
            shutil.copytree(run_folder("rounds"), search_folder(source, one, point, 0))
    texts = {"tuning.toml": tomli_w.dumps(plan.as_dict())}
    write(source / "tuning.toml", texts["tuning.toml"])
    write_search(plan, source)
    texts["choice.toml"] = (source / "choice.toml").read_text(encoding="utf-8")

    def read(file: tuple[str, str], folder: Path) -> None:
        copy = copy_with(source, *file, folder)
        loaded = TuningPlan.load(copy)
        for one in loaded.arms:
            read_search(loaded, copy, one)
        plan_tuned(copy, {}, [7]).runs(copy)

    def make(m: Mutator) -> tuple[str, str]:
        name = m.rng.choice(list(texts))
        return name, m.toml(texts[name])

    corners = [(name, text) for name in texts for text in (*DEEP_VALUES, "", "arms = 1", "arms = [1]", "\udc80")]
    changes: dict[str, list[Any]] = {
        "by": [1, [], "x"],
        "seeds": [1, "ab", [[]], ["x"], [0.5], [-1], []],
        "held_out": [1, [[]], ["x"], [-1]],
        "widenings": ["x", 10**9, -1, [], 0.5],
        "grid": [1, [], {"lr": 1}, {"lr": [[]]}, {"lr": [{}]}, {"lr": "x"}, {"": [1]}, {"lr": [0.1, "x"]}],
        "arms": [1, [1], [{}], [{"method": 1, "policy": 2}], [{"method": "fedavg", "policy": "keep", "settings": 1}]],
        "base": [1, [], {}, {"method": 1}, {"options": {"sgd": 1}}],
    }
    for key, values in changes.items():
        corners += [("tuning.toml", tomli_w.dumps({**plan.as_dict(), key: value})) for value in values]
    choice = tomllib.loads(texts["choice.toml"])
    for value in (
        1,
        [1, 1],
        [{}, {}],
        [{"method": 1, "policy": 2, "settings": {}}] * 2,
        [{"method": "fedavg", "policy": "keep", "settings": 1}] * 2,
    ):
        corners.append(("choice.toml", tomli_w.dumps({**choice, "arms": value})))
    return Reader("tuning.toml", make, read, corners, cost=5)


@reader
def searched_summary() -> Reader:
    """The summaries of a search: their costs."""
    from fedlga.experiments.arms import Arm
    from fedlga.experiments.criteria import CRITERIA
    from fedlga.experiments.tune import TuningPlan, read_search, search_folder, write_search

    arms = [Arm("fedavg", "keep")]
    plans = [
        TuningPlan(small_experiment(), arms, {"lr": [0.05, 0.1]}, CRITERIA[by], [0], [1], 0)
        for by in ("accuracy", "time", "metric")
    ]
    source = scratch() / "searched"
    points = ((("lr", 0.05),), (("lr", 0.1),))
    for point in points:
        shutil.copytree(run_folder("rounds"), search_folder(source, arms[0], point, 0))
    name = (search_folder(source, arms[0], points[0], 0) / "summary.json").relative_to(source).as_posix()
    text = (source / name).read_text(encoding="utf-8")

    def read(file: tuple[str, str], folder: Path) -> None:
        copy = copy_with(source, *file, folder)
        for plan in plans:
            read_search(plan, copy, arms[0])
            write_search(plan, copy)

    return Reader("searched summary.json", lambda m: (name, m.json(text)), read, cost=5)


# Devices' memories and messages


@reader
def memory_file() -> Reader:
    """A device's memory file."""
    from fedlga.backends.memory_store import MemoryFile

    source = scratch() / "memory"
    MemoryFile(source).write(3, {"control": torch.arange(5.0), "other": torch.zeros(2, 2)})
    content = (source / "3.safetensors").read_bytes()

    def read(data: bytes, folder: Path) -> None:
        write(folder / "memory" / "3.safetensors", data)
        MemoryFile(folder / "memory", 3).read()

    corners = [b"", b"\0" * 8, b"\xff" * 8, (2**62).to_bytes(8, "little"), b"\x02" + b"\0" * 7 + b"{}", content[:-1]]
    nested = deep("[", "]").encode()
    corners += [len(nested).to_bytes(8, "little") + nested]
    for shape in ([2**40], [-1], [0], [2**63], [1.5], "x", [[]], [10**30]):
        corners.append(_with_header(content, lambda h, s=shape: {**h, "control": {**h["control"], "shape": s}}))
    return Reader("MemoryFile.read", lambda m: m.tensors(content), read, corners)


@reader
def node_memory() -> Reader:
    """The configuration of a node and the name of a run: where a node keeps its memory."""
    from flwr.app import Context, RecordDict

    from fedlga.backends.flower.node_memory import device_number, own_memory_file

    def read(values: Any, folder: Path) -> None:
        config = {**_mapping(values.get("config") if isinstance(values, dict) else {})}
        config.setdefault("state-dir", str(folder))
        context = Context(run_id=1, node_id=1, node_config=config, state=RecordDict(), run_config={})
        run = values.get("run") if isinstance(values, dict) else ""
        own_memory_file(context, str(run), 3).read()
        device_number(config)

    base = {"config": {"device": 1, "partition-id": 2}, "run": "run1"}
    corners = [
        {"config": {"device": v}, "run": r} for v in ("x", 1.5, True, -1) for r in ("", "..", "a/b", "a\0", "é" * 300)
    ]
    corners += [{"config": {"device": 1, "state-dir": v}, "run": "r"} for v in ("\0", "a" * 5000, 1, True)]
    return Reader("node memory", lambda m: m.tree(base), read, corners)


def _message(vectors: Mapping[str, Any], numbers: Any, record: Any) -> Any:
    """Return the content of a message; None if Flower itself refuses these values."""
    from flwr.app import Array, ArrayRecord, RecordDict

    try:
        arrays = {name: Array(**array) for name, array in vectors.items()}
        content = RecordDict({"vectors": ArrayRecord(arrays)})
        content["numbers"] = record(numbers)
    except Exception:  # what cannot be made cannot be sent
        return None
    return content


def _plain_array(values: Any) -> dict[str, Any]:
    from flwr.app import Array

    array = Array(np.asarray(values, np.float32))
    return {"dtype": array.dtype, "shape": tuple(array.shape), "stype": array.stype, "data": array.data}


def _damage_array(m: Mutator, array: dict[str, Any]) -> dict[str, Any]:
    key = m.rng.choice(["dtype", "shape", "stype", "data", "data"])
    dtypes = ["float64", "object", "O", "x", "", "int8", "<f4", "S9999999999", "V4", "float32\n", "M8[s]", "(3,)f4"]
    shapes = [(), (0,), (-1,), (2**62, 4), (5, 1), (10**30,), (2**31,)]
    others = {"dtype": m.rng.choice(dtypes), "shape": m.rng.choice(shapes), "stype": m.rng.choice(TEXTS)}
    npz = io.BytesIO()
    np.savez(npz, a=np.zeros(3))
    data = m.rng.choice([m.bytes(array["data"]), m.bytes(array["data"]), npz.getvalue(), b"", b"\x80\x04N."])
    return {**array, key: data if key == "data" else others[key]}


def _damage_message(
    m: Mutator, vectors: dict[str, Any], numbers: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    vectors, numbers = dict(vectors), dict(numbers)
    for _ in range(m.rng.choice([1, 1, 2])):
        match m.rng.randrange(6):
            case 0 | 1 | 2:
                name = m.rng.choice(list(vectors) or ["w"])
                vectors[name] = _damage_array(m, vectors.get(name) or _plain_array([1.0]))
            case 3:
                vectors.pop(m.rng.choice(list(vectors) or ["w"]), None)
            case 4:
                values = [-1, 2**62, 0.5, 1e308, *NOT_FINITE, [], [1], [1.0, 2.0], True, "x", b"x", 10**18]
                numbers[m.rng.choice(list(numbers) or ["round"])] = m.rng.choice(values)
            case _:
                if m.rng.randrange(2):
                    numbers.pop(m.rng.choice(list(numbers) or ["round"]), None)
                else:
                    numbers[m.rng.choice(TEXTS)] = 1
    return vectors, numbers


@functools.cache
def _assignment() -> Any:
    from fedlga.core.types import Assignment

    known = {"round": 2, "device": 1, "steps": 3, "steps_asked": 4, "lr": 0.1, "momentum": 0.0, "seed": 5}
    return Assignment(w=torch.ones(5), broadcast={"control": torch.ones(5)}, buffers=torch.ones(2), **known)


@reader
def assignment_message() -> Reader:
    """An assignment, as a node reads it."""
    from types import SimpleNamespace

    from flwr.app import ConfigRecord

    from fedlga.backends.flower.messages import unpack_assignment

    vectors = {"w": _plain_array(np.ones(5)), "control": _plain_array(np.ones(5)), "buffers": _plain_array(np.ones(2))}
    numbers = {name: value for name, value in _assignment().numbers().items() if value is not None}

    def read(given: tuple[dict[str, Any], dict[str, Any]], _: Path) -> None:
        if (content := _message(*given, ConfigRecord)) is None:
            raise BadInput("Flower refuses it")
        unpack_assignment(SimpleNamespace(content=content))

    return Reader("unpack_assignment", lambda m: _damage_message(m, vectors, numbers), read, [({}, {}), (vectors, {})])


@reader
def update_message() -> Reader:
    """An update, as the aggregator reads it."""
    from flwr.app import MetricRecord

    from fedlga.backends.flower.messages import Refused, unpack_update

    vectors = {
        "delta": _plain_array(np.ones(5)),
        "control": _plain_array(np.ones(5)),
        "buffers": _plain_array(np.ones(2)),
    }
    numbers = {"round": 2, "device": 1, "steps": 3, "steps_asked": 4, "examples": 9, "train_loss": 0.5, "seconds": 1.0}

    def read(given: tuple[dict[str, Any], dict[str, Any]], _: Path) -> None:
        if (content := _message(*given, MetricRecord)) is None:
            raise BadInput("Flower refuses it")
        unpack_update(content, _assignment(), ("control",))

    corners = [
        (vectors, {**numbers, key: value}) for key in numbers for value in (math.nan, math.inf, [1], -1, 1e308, 2**62)
    ]
    make = lambda m: _damage_message(m, vectors, numbers)  # noqa: E731
    return Reader("unpack_update", make, read, corners, refusals=(BadInput, Refused))


# Fleets and data


def _csv_reader(name: str, text: str, read: Callable[[Path], object], corners: Iterable[str] = ()) -> Reader:
    common = ["", "\n", "\ufeff" + text, text.replace("\n", "\r"), '"', text + '"', text + "a" * 200_000, text + "\0\n"]
    common += [text + ",,,,,,\n", text + HUGE + ",1,1\n", text + "²,1,1\n", text + "1,²,1\n"]
    common += [text + "1,1," + "9" * 400 + "\n"]
    common += [text.replace("device", "device,device"), text + "1,1,1,1,1\n", text + "1\n", "x" * 200_000]
    common += [text + "\udc80"]
    return Reader(
        name, lambda m: m.text(text), lambda t, folder: read(write(folder / "file.csv", t)), [*common, *corners]
    )


@reader
def trace_file() -> Reader:
    """The CSV file of a recorded fleet."""
    from fedlga.fleets.trace import read_trace

    text = "round,device,epochs\n1,0,2\n1,1,0.5\n2,0,1\n"
    corners = [text + f"{v},1,1\n" for v in ("1e3", "-1", "٣", HUGE)] + ["round,device,seconds\n1,0,1e-320\n"]
    corners += ["round,device,epochs\n1,0,1e-320\n"]
    return _csv_reader("trace", text, lambda file: read_trace(file, 4, 2, 1.0), corners)


@reader
def figures_file() -> Reader:
    """The CSV file of phones' speeds."""
    from fedlga.fleets.population import read_figures

    return _csv_reader("figures", "device,speed,download\n0,2,30\n1,,5\n", lambda file: read_figures(file, 4))


@reader
def windows_file() -> Reader:
    """The CSV file of phones' hours."""
    from fedlga.fleets.population import read_windows

    text = "device,start,end\n0,0,3600\n1,80000,90000\n"
    return _csv_reader("windows", text, lambda file: read_windows(file, 4, 86400.0))


@reader
def fleet_file() -> Reader:
    """fleet.toml and up.json of a deployment. Nothing is started or stopped."""
    from fedlga.backends.flower.trial import Trial

    texts = {
        "fleet.toml": 'nodes = 5\nport = 9443\nhost = "127.0.0.1"\n',
        "up.json": json.dumps({"superlink": {"pid": 2**22 + 5, "since": 5}, "node-0": {"pid": 2**22 + 6, "since": 7}}),
    }

    def read(file: tuple[str, str], folder: Path) -> None:
        for name, text in {**texts, file[0]: file[1]}.items():
            write(folder / "fleet" / name, text)
        trial = Trial(folder / "fleet")
        assert trial.port is not None
        trial.running()
        trial.up(0, [], lambda _: None)  # refused after fleet.toml is read: nothing is started

    def make(m: Mutator) -> tuple[str, str]:
        name = m.rng.choice(list(texts))
        return name, m.toml(texts[name]) if name == "fleet.toml" else m.json(texts[name])

    corners = [
        ("fleet.toml", text)
        for text in (*DEEP_VALUES, "", "port = 1", "nodes = 1", "port = 'x'\nnodes = 1", "port = []")
    ]
    corners += [("fleet.toml", f"port = 1\nnodes = {v}") for v in ("'x'", "[]", "nan", "inf", "{}")]
    corners += [
        ("up.json", text)
        for text in ("[]", "1", "null", '{"a": 1}', '{"a": {}}', '{"a": {"pid": "x"}}', deep("[", "]"))
    ]
    corners += [
        ("up.json", f'{{"a": {{"pid": {v}, "since": 1}}}}') for v in ("null", "1e999", HUGE[:400], "[]", "-1", '"1"')
    ]
    return Reader("fleet.toml", make, read, corners)


@reader
def fashion_mnist() -> Reader:
    """A file of Fashion-MNIST: gzip."""
    from fedlga.learning.datasets.fashion_mnist import FashionMnist

    name = next(iter(FashionMnist.files))
    content = gzip.compress(b"\0\0\x08\x03" + bytes(28 * 28 + 12), mtime=0)
    member = gzip.compress(bytes(1 << 24), mtime=0)

    def read(data: bytes, folder: Path) -> None:
        FashionMnist().verify(write(folder / name, data))

    return Reader(
        "Fashion-MNIST", lambda m: m.bytes(content), read, [b"", b"\x1f\x8b", content, content + b"x", member * 80]
    )


@reader
def cifar() -> Reader:
    """A file of CIFAR-100: records of one length, in any order."""
    from fedlga.learning.datasets.cifar import Cifar10, Cifar100

    content = bytes(range(256)) * 12 + b"ab"

    def read(data: bytes, folder: Path) -> None:
        Cifar100().verify(write(folder / "train.bin", data))
        Cifar10().verify(write(folder / "test_batch.bin", data))

    return Reader("CIFAR", lambda m: m.bytes(content * 2), read, [b"", content, content * 3, b"\0" * len(content)])


@reader
def device_files() -> Reader:
    """A device's own file of data: arrays, tensors or a table."""
    from safetensors.torch import save

    from fedlga.learning.folders import read_file

    npz = io.BytesIO()
    np.savez_compressed(npz, x=np.zeros((3, 2), np.float32), y=np.zeros(3))
    files = {
        "0.npz": npz.getvalue(),
        "0.safetensors": save({"x": torch.zeros(3, 2), "y": torch.zeros(3)}),
        "0.csv": b"a,b\n1,2\n3,4\n",
    }

    def make(m: Mutator) -> tuple[str, bytes]:
        name = m.rng.choice(list(files))
        return name, m.tensors(files[name]) if name.endswith("tensors") else m.bytes(files[name])

    corners = [(name, data) for name in files for data in (b"", b"\0", b"\xff\xfe", deep("[", "]").encode())]
    return Reader(
        "device files", make, lambda file, folder: read_file("data", write(folder / file[0], file[1])), corners
    )


@reader
def image_files() -> Reader:
    """A device's folder of images."""
    from PIL import Image

    from fedlga.learning.folders import list_folder

    contents: dict[str, bytes] = {}
    for suffix, kind in (
        ("png", "PNG"),
        ("gif", "GIF"),
        ("bmp", "BMP"),
        ("tif", "TIFF"),
        ("jpg", "JPEG"),
        ("webp", "WEBP"),
    ):
        out = io.BytesIO()
        Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(out, kind)
        contents[suffix] = out.getvalue()

    def read(file: tuple[str, bytes], folder: Path) -> None:
        shutil.rmtree(folder / "images", ignore_errors=True)
        write(folder / "images" / "0" / "cat" / f"0.{file[0]}", file[1])
        for device in list_folder("data", folder / "images", "it takes a folder").values():
            device.examples("data")

    def make(m: Mutator) -> tuple[str, bytes]:
        suffix = m.rng.choice(list(contents))
        return suffix, m.bytes(contents[suffix])

    return Reader("images", make, read, [("png", b""), ("png", _huge_png(20000)), ("png", _huge_png(100_000))])


def _huge_png(side: int) -> bytes:
    """Return a small PNG whose header claims a huge image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    size = side.to_bytes(4, "big")
    head = chunk(b"IHDR", size + size + b"\x08\x00\x00\x00\x00")
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@reader
def archive() -> Reader:
    """The publisher's archive of a dataset, and npm's package, as they came from outside."""
    import tarfile

    from fedlga.learning.datasets import sources

    def pack(members: Mapping[str, bytes]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        return gzip.compress(out.getvalue(), mtime=0)

    content = pack({"a/x.bin": random.Random(0).randbytes(9000), "a/y.bin": b"xyz"})
    publisher = sources.Publisher(["http://localhost/x.tar.gz"], members=("a/x.bin", "a/y.bin"))

    def read(data: bytes, folder: Path) -> None:
        before = sources.download
        sources.download = lambda *_: write(folder / "x.tar.gz", data)
        try:
            publisher.fetch(folder, folder, lambda *_: None)
        finally:
            sources.download = before

    raw = gzip.decompress(content)
    corners = [b"", raw, raw[:700], content[:3000]]
    corners += [content[: len(content) // 2] + bytes(9) + content[len(content) // 2 :]]
    corners += [b"\xfd7zXZ\0" + bytes(99), b"BZh9" + bytes(99), content.replace(b"\x1f\x8b\x08", b"\x1f\x8b\x09")]

    def make(m: Mutator) -> bytes:
        return m.bytes(content) if m.rng.randrange(2) else gzip.compress(m.bytes(raw), mtime=0)

    return Reader("archive", make, read, corners, refusals=(BadInput, sources.Unreachable))


# The loop


@dataclass
class Result:
    """What became of a reader's inputs."""

    name: str
    tried: int = 0
    refused: int = 0
    accepted: int = 0
    uncaught: dict[str, tuple[Input, str]] = field(default_factory=dict[str, tuple[Any, str]])  # by where it happened
    times: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def mistakes(self) -> int:
        """The number of inputs that were neither accepted nor refused."""
        return sum(self.times.values())


@contextlib.contextmanager
def limited(timed: bool) -> Generator[None]:
    """Limit the memory, and the time if asked, that what follows may take."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))

    def stop(*_: object) -> None:
        raise Hung(f"more than {LONGEST} seconds")

    handler = signal.signal(signal.SIGALRM, stop) if timed else None
    if timed:
        signal.alarm(LONGEST)
    try:
        yield
    finally:
        if timed:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def try_input(one: Reader, given: Input, folder: Path, timed: bool) -> tuple[str, str] | bool:
    """Have an input read; return whether it was accepted, or where and how it failed."""
    try:
        with limited(timed), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            one.read(given, folder)
    except one.refusals as error:
        return ("message", f"{type(error).__name__} of several lines: {error!s:.300}") if "\n" in str(error) else False
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _place(error), f"{type(error).__name__}: {str(error)[:200]!r}"
    return True


def _place(error: BaseException) -> str:
    """Return the last line of the package, and the last before it in another file, that an error came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/fedlga/" in f.filename]
    places = [f"{f.filename.rpartition('/fedlga/')[2]}:{f.lineno}" for f in frames]
    return f"{type(error).__name__} at {' < '.join(list(dict.fromkeys(reversed(places)))[:4])}"


def run_reader(one: Reader, seed: int, count: int, seconds: float, *, timed: bool) -> Result:
    """Try the corners, then damaged inputs, until there were `count` or the time is up."""
    result = Result(one.name)
    folder = scratch() / "input"
    until = time.monotonic() + seconds
    number = 0
    while number < len(one.corners) + count and time.monotonic() < until:
        if number < len(one.corners):
            given = one.corners[number]
        else:
            digest = hashlib.sha256(f"{seed} {one.name} {number - len(one.corners)}".encode()).digest()
            given = one.make(Mutator(random.Random(digest)))
        number += 1
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        outcome = try_input(one, given, folder, timed)
        result.tried += 1
        result.accepted += outcome is True
        result.refused += outcome is False
        if not isinstance(outcome, bool):
            where, words = outcome
            result.times[where] = result.times.get(where, 0) + 1
            if where not in result.uncaught:
                result.uncaught[where] = given, words
    return result


def shrink(one: Reader, given: Input, where: str, *, timed: bool) -> Input:
    """Return a smaller input that fails at the same place: the last text or bytes of it with slices removed."""
    parts = list(given) if isinstance(given, tuple | list) else [given]
    index = next((i for i in reversed(range(len(parts))) if isinstance(parts[i], str | bytes)), None)
    if index is None:
        return given
    kind = type(given) if isinstance(given, tuple | list) else None
    folder, size, tries = scratch() / "input", max(1, len(parts[index]) // 2), 0
    until = time.monotonic() + SHRINKING
    while tries < SHRINKS and time.monotonic() < until:
        at, smaller = 0, False
        while at < len(parts[index]) and tries < SHRINKS and time.monotonic() < until:
            tries += 1
            attempt = [*parts[:index], parts[index][:at] + parts[index][at + size :], *parts[index + 1 :]]
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            outcome = try_input(one, kind(attempt) if kind else attempt[0], folder, timed)
            if not isinstance(outcome, bool) and outcome[0] == where:
                parts, smaller = attempt, True
            else:
                at += size
        if size == 1 and not smaller:
            break
        size = max(1, size // 2)
    return kind(parts) if kind else parts[0]


def show(given: Input) -> str:
    """Return an input in one line."""
    text = repr(given)
    return text if len(text) <= 400 else f"{text[:250]} ... {text[-100:]} ({len(text)} characters)"  # noqa: PLR2004


def main() -> int:
    """Run all readers for some time, and print a table."""
    parser = argparse.ArgumentParser(description="Feed damaged input to every reader.")
    parser.add_argument("--seconds", type=float, default=60.0, help="in total; default: 60")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="readers whose name contains this")
    given = parser.parse_args()
    torch.set_num_threads(1)
    readers = [one for make in READERS if (given.only or "") in (one := make()).name]
    print(f"{'reader':<22} {'tried':>7} {'refused':>8} {'accepted':>8} {'uncaught':>8}")
    failed = False
    for one in readers:
        result = run_reader(one, given.seed, sys.maxsize, given.seconds / len(readers), timed=True)
        print(
            f"{one.name:<22} {result.tried:>7} {result.refused:>8} {result.accepted:>8} {result.mistakes:>8}",
            flush=True,
        )
        for where, (example, words) in result.uncaught.items():
            smallest = shrink(one, example, where, timed=True)
            print(
                f"    {words}\n      {where} ({result.times[where]} times)\n      input: {show(smallest)}", flush=True
            )
        failed = failed or bool(result.uncaught)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
