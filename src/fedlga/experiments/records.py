"""Reading run folders: records, summaries, who holds what. The only reader of each.

A file that cannot be understood is left as it is, and named in one line. Only a last line of rounds.jsonl that was cut
off, when a run was killed, does not count.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import list_measures, summarise_run

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

ROUNDS, SUMMARY, EXPERIMENT, PARTITION = "rounds.jsonl", "summary.json", "experiment.toml", "partition.json"


@dataclass(frozen=True)
class Run:
    """A run that is over, or was stopped."""

    folder: Path
    experiment: Experiment
    records: Sequence[Record]
    summary: dict[str, Any]


def read_run(folder: Path) -> Run:
    """Return a run from its folder."""
    experiment = Experiment.load(folder / EXPERIMENT)
    records = read_records(folder)
    return Run(folder, experiment, records, summarise_run(experiment, records))


def read_records(folder: Path) -> list[Record]:
    """Return the rounds of a folder; BadInput if a line other than the last cannot be understood."""
    return [record for record, _ in read_lines(folder)]


def read_lines(folder: Path) -> list[tuple[Record, int]]:
    """Return each record with the position in rounds.jsonl, in bytes, at which its line ends."""
    file = folder / ROUNDS
    try:
        content = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise BadInput(f"cannot read {str(file)!r} ({error.strerror})") from error
    records: list[tuple[Record, int]] = []
    position = 0
    *lines, _ = content.split(b"\n")  # what is after the last newline was cut off by a kill, or is empty
    for number, line in enumerate(lines, start=1):
        position += len(line) + 1
        try:
            record = _parse_line(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = str(error) if isinstance(error, BadInput) else "not a record"
            raise BadInput(
                f"{str(file)!r}: line {number} cannot be read ({reason}); the file is left as it is"
            ) from error
        if record.round != len(records) + 1:
            raise BadInput(
                f"{str(file)!r}: line {number} is round {record.round}, not {len(records) + 1}; "
                "the file is left as it is"
            )
        records.append((record, position))
    return records


def _parse_line(line: bytes) -> Record:
    values = json.loads(line)
    if not isinstance(values, dict):
        raise TypeError("not an object")
    record = Record.from_dict(cast("dict[str, Any]", values))
    values_and_types = {name: (getattr(record, name), kind) for name, kind in _record_types().items()}
    values_and_types |= {name: (value, float | None) for name, value in record.metrics.items()}
    for name, (value, kind) in sorted(values_and_types.items(), key=lambda item: item[0] == "metrics"):
        if not _is_a(value, kind):
            raise BadInput(f"record: {name} is not of the type that it should be")
    return record


@functools.cache
def _record_types() -> dict[str, Any]:
    return typing.get_type_hints(Record)


def _is_a(value: Any, kind: Any) -> bool:
    """Return whether a value is of a type that a record has; None in a dict stands for not-a-number."""
    inner = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return any(_is_a(value, option) for option in inner)
    if typing.get_origin(kind) is list:
        return isinstance(value, list) and all(_is_a(v, inner[0]) for v in cast("list[Any]", value))
    if typing.get_origin(kind) is dict:
        values = cast("dict[Any, Any]", value).values() if isinstance(value, dict) else [value]
        return isinstance(value, dict) and all(v is None or _is_a(v, inner[1]) for v in values)
    return kind is Any or type(value) is kind or (kind is float and type(value) is int)


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
    return rows if rows and whole else None


def make_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return records as a pandas DataFrame, a row a round."""
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
