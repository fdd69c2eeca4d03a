"""Reading run folders: records, summaries, who holds what. The only reader of each.

A file that cannot be understood is left as it is, and named in one line. Only a last line of rounds.jsonl that was cut
off, when a run was killed, does not count.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import list_measures, summarise_run

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
    from torch import Tensor, nn

    from fedlga.learning.task import Task

ROUNDS, SUMMARY, EXPERIMENT, PARTITION = "rounds.jsonl", "summary.json", "experiment.toml", "partition.json"
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # what a damaged record raises
MOST_EXAMPLES = 2**40  # of a class on a device: sums of them fit into 64 bits
MOST_DIGITS = 30  # of a whole number: sums of such numbers can still be turned into floats
_MANY_DIGITS = re.compile(rb"\d{%d}" % (MOST_DIGITS + 1))


@dataclass(frozen=True)
class Run:
    """A run that is over, or was stopped, or is going on: what its folder holds.

    `fedlga.run` and `fedlga.load` return one.
    """

    folder: Path
    experiment: Experiment
    summary: dict[str, Any]

    @functools.cached_property
    def records(self) -> Sequence[Record]:
        """The rounds that the summary is of. They are read when they are first asked for: a long run has many."""
        return list(itertools.islice(iterate_records(self.folder), self.summary["rounds"]))

    def __repr__(self) -> str:
        """Return what it is in a line: a run of a thousand rounds would fill a notebook."""
        e, metric = self.experiment, self.experiment.target_metric
        final = self.summary.get(f"final_{metric}")
        value = "" if final is None else f", {metric} {final:.4g}"
        done = f"{self.summary['rounds']} of {e.rounds} rounds"
        return f"<Run {str(self.folder)!r}: {e.method} ({e.policy}), {e.subject}, seed {e.seed}, {done}{value}>"

    def frame(self) -> pd.DataFrame:
        """Return the rounds as a pandas DataFrame, a row a round."""
        return make_frame(self.records)

    def model(self, *, task: Task | None = None, data_dir: str | Path | None = None) -> nn.Module:
        """Return the trained model: a plain nn.Module, in evaluation mode, on the CPU.

        It takes inputs as it was trained on them; `predict` takes raw ones. `task` is for a run whose task was made in
        Python. `data_dir` is where data is kept: only folders of earlier versions need it.
        """
        from fedlga.experiments.prediction import load_model, read_inputs

        return load_model(self.folder, self.experiment, read_inputs(self.folder, self.experiment, data_dir), task)

    def predict(self, inputs: Any, *, task: Task | None = None, data_dir: str | Path | None = None) -> Tensor:
        """Return what the trained model makes of raw inputs: a class for each if it scores classes, else its outputs.

        Of a named dataset, inputs are images as published (pixels from 0 to 255): they are normalised and resized as in
        training. Of a task, they are inputs as data() gives them: an array, a tensor, a frame or a list of rows, or a
        tuple or dict of them if the model has several inputs.
        """
        import torch

        outputs = self.scores(inputs, task=task, data_dir=data_dir)
        from fedlga.experiments.prediction import read_inputs

        classes = read_inputs(self.folder, self.experiment, data_dir).classes
        scored = classes is not None and isinstance(outputs, torch.Tensor) and outputs.dim() == 2  # noqa: PLR2004
        return outputs.argmax(1) if scored else outputs

    def scores(self, inputs: Any, *, task: Task | None = None, data_dir: str | Path | None = None) -> Any:
        """Return the trained model's outputs for raw inputs, as they are; a tree of tensors if it gives one.

        See `predict` for the inputs.
        """
        from fedlga.experiments.prediction import compute_outputs, load_model, read_inputs

        known = read_inputs(self.folder, self.experiment, data_dir)
        return compute_outputs(load_model(self.folder, self.experiment, known, task), inputs, known)

    def resume(self, *, task: Task | None = None, data_dir: str | Path | None = None, **changes: Any) -> Run:
        """Continue the run to its end, and return it. `rounds`, `target` and a few others may change: rounds=400."""
        from fedlga.experiments.run import load_for_resume, run_and_record

        e = load_for_resume(self.folder, changes)
        for _ in run_and_record(e, self.folder, resume=True, task=task, data_dir=data_dir):
            pass
        return read_run(self.folder)


def read_run(folder: str | Path) -> Run:
    """Return a run from its folder."""
    if not isinstance(folder, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadInput(f"load: got {folder!r}; it takes the folder of a run")
    folder = Path(folder)
    if not (folder / EXPERIMENT).is_file():
        below = next((file.parent for file in sorted(folder.glob(f"*/*/{EXPERIMENT}"))), None)  # of a comparison
        such_as = "" if below is None else f", such as {str(below)!r}"
        raise BadInput(f"load: {str(folder)!r} holds no run; it takes the folder of one{such_as}")
    experiment = Experiment.load(folder / EXPERIMENT)
    return Run(folder, experiment, summarise_run(experiment, iterate_records(folder)))


def read_records(folder: Path) -> list[Record]:
    """Return the rounds of a folder; BadInput if a line other than the last cannot be understood."""
    return list(iterate_records(folder))


def count_rounds(folder: Path) -> int:
    """Return how many rounds a folder has; BadInput as from `read_records`."""
    return sum(1 for _ in read_lines(folder))


def iterate_records(folder: Path) -> Iterator[Record]:
    """Yield the rounds of a folder one by one, as `read_records` returns them."""
    return (record for record, _ in read_lines(folder))


def read_lines(folder: Path) -> Iterator[tuple[Record, int]]:
    """Yield each record with the position in rounds.jsonl, in bytes, at which its line ends. One is held at a time."""
    file = folder / ROUNDS
    try:
        if not file.exists():
            return
        with file.open("rb") as lines:
            position = 0
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):  # what is after the last newline was cut off by a kill
                    return
                position += len(line)
                yield _read_line(file, number, line), position
    except OSError as error:
        raise BadInput(f"cannot read {str(file)!r} ({error.strerror})") from error


def _read_line(file: Path, number: int, line: bytes) -> Record:
    try:
        record = parse_line(line)
    except UNREADABLE as error:
        reason = str(error) if isinstance(error, BadInput) else "not a record"
        raise BadInput(f"{str(file)!r}: line {number} cannot be read ({reason}); the file is left as it is") from error
    if record.round != number:
        raise BadInput(f"{str(file)!r}: line {number} is round {record.round}, not {number}; the file is left as it is")
    return record


def parse_line(line: bytes) -> Record:
    """Return the record that a line of rounds.jsonl holds; UNREADABLE if it holds none."""
    # Almost no line has so many digits in a row; a function of Python that looks at each number is slow.
    values = json.loads(line, parse_int=_parse_int) if _MANY_DIGITS.search(line) else json.loads(line)
    if not isinstance(values, dict):
        raise TypeError("not an object")
    record = Record.from_dict(cast("dict[str, Any]", values))
    for name, check in _record_checks():
        if not check(getattr(record, name)):
            raise BadInput(f"record: {name} is not of the type that it should be")
    for name, value in record.metrics.items():
        if not _is_a(value, float | None):
            raise BadInput(f"record: {name} is not of the type that it should be")
    if not len(record.devices) == len(record.steps) == len(record.steps_asked):
        raise BadInput("record: devices, steps and steps_asked are not of one length")
    return record


def _parse_int(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise BadInput(f"record: it has a number of more than {MOST_DIGITS} digits")
    return int(digits)


@functools.cache
def _record_checks() -> list[tuple[str, Callable[[Any], bool]]]:
    kinds: dict[str, Any] = typing.get_type_hints(Record)
    return [(name, _make_check(kind)) for name, kind in kinds.items() if name != "metrics"]


def _is_a(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type that a record has."""
    return _make_check(kind)(value)


@functools.cache
def _make_check(kind: Any) -> Callable[[Any], bool]:
    """Return the check of a type. It looks at all values of a list at once: a long run has millions of them."""
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is list:
        allowed = _list_types(inner[0])
        return lambda value: (
            isinstance(value, list) and (allowed is None or allowed.issuperset(map(type, cast("list[Any]", value))))
        )
    if typing.get_origin(kind) is dict:
        allowed = _list_types(inner[1])
        return lambda value: (
            isinstance(value, dict)
            and (allowed is None or allowed.issuperset(map(type, cast("dict[Any, Any]", value).values())))
        )
    if isinstance(kind, types.UnionType):
        checks = [_make_check(option) for option in inner]
        return lambda value: any(check(value) for check in checks)
    allowed = _list_types(kind)
    return lambda value: allowed is None or type(value) in allowed


def _list_types(kind: Any) -> frozenset[type] | None:
    """Return the types that a plain value may have; None: any. A float may be written as an int."""
    if kind is Any:
        return None
    kinds: tuple[type, ...] = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    return frozenset[type]((*kinds, int) if float in kinds else kinds)


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a run that is finished; an empty dict if it is not, or if the file is damaged.

    What summary.json lacks, because an earlier version wrote it, is computed from the records.
    """
    summary = _read_json(folder / SUMMARY)
    if not summary.get("finished"):
        return {}
    if all(m.name in summary or m.only_audited for m in list_measures(str(summary.get("metric", "accuracy")))):
        return summary
    return {**read_run(folder).summary, **summary}


def read_versions(folder: Path) -> dict[str, str]:
    """Return the versions that made a run, if its summary says."""
    versions = _read_json(folder / SUMMARY).get("versions")
    given = cast("dict[str, Any]", versions) if isinstance(versions, dict) else {}
    return {name: version for name, version in given.items() if isinstance(version, str)}


def read_partition(folder: Path) -> list[list[int]] | None:
    """Return how many examples of each class every device of a run holds; None if the folder does not say."""
    counts: Any = _read_json(folder / PARTITION).get("counts")
    rows = cast("list[Any]", counts) if isinstance(counts, list) else []
    whole = all(_is_a(row, list[int]) and len(row) == len(rows[0]) > 0 for row in rows)
    return rows if rows and whole and all(0 <= count <= MOST_EXAMPLES for row in rows for count in row) else None


def make_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return records as a pandas DataFrame, a row a round."""
    given: Any = records
    if not isinstance(given, Sequence) or not all(isinstance(r, Record) for r in cast("Sequence[Any]", given)):
        raise BadInput(f"frame: got {given!r}; it takes records, such as fedlga.load(DIR).records")
    try:
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise BadInput("frame: pandas is not installed; pip install 'fedlga[pandas]'") from error
    return pd.DataFrame([r.as_dict() for r in records]).set_index("round")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (ValueError, OSError, RecursionError):
        return {}
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}
