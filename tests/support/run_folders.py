"""Looking into run folders, and comparing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fedlga.core.tensors import load_tensors
from fedlga.core.types import Record
from fedlga.experiments.measures import list_measures
from fedlga.experiments.presets import preset

OLD_RUNS = Path(__file__).parent / "old_runs"  # written by fedlga as it was before records had a version


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the joint model of a run, by parameter name."""
    return dict(load_tensors(folder / "model.safetensors")[0])


def read_lines_without_seconds(folder: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run as they are written, without what every run has its own."""
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def assert_same_state(a: Path, b: Path) -> None:
    """Assert that weights, all memories and all records of two runs are the same to the last bit."""
    assert read_lines_without_seconds(a) == read_lines_without_seconds(b)
    for pattern in ("model.safetensors", "checkpoint/server.safetensors", "checkpoint/devices/*.safetensors"):
        names = sorted(str(p.relative_to(a)) for p in a.glob(pattern))
        assert names == sorted(str(p.relative_to(b)) for p in b.glob(pattern))
        for name in names:
            (one, meta), (other, other_meta) = load_tensors(a / name), load_tensors(b / name)
            assert meta == other_meta
            assert one.keys() == other.keys()
            assert all(torch.equal(one[key], other[key]) for key in one)


def read_everything(folder: Path) -> dict[str, bytes | None]:
    """Return every file below a folder with its bytes, and every folder."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in paths}


def write_finished(folder: Path, **summary: Any) -> None:
    """Write the summary of a run that is done, and nothing else: all that tables and claims read."""
    folder.mkdir(parents=True)
    base = {"seed": 0, "rounds": 8, "rounds_to_target": None, "versions": {}, "simulated_seconds": 9.0}
    metric = summary.get("metric", "accuracy")
    measures = dict.fromkeys(m.name for m in list_measures(metric))
    (folder / "summary.json").write_text(json.dumps({**measures, **base, **summary, "finished": True}))


def make_record(**changes: Any) -> Record:
    """Return a record in which nobody did anything, with some fields or metrics changed."""
    metrics: dict[str, Any] = {"accuracy": 0.5, "loss": 1.0, "accuracy_slow": None, "accuracy_worst": None}
    metrics |= {name: changes.pop(name) for name in metrics if name in changes}
    fields: dict[str, Any] = {
        "round": 1,
        "metrics": metrics,
        "train_loss": 1.0,
        "seconds": 1.0,
        "simulated_seconds": 1.0,
        "lr": 0.1,
        "devices": [],
        "steps": [],
        "steps_asked": [],
        "slow": [],
        "absent": [],
        "used": [],
        "scales": {},
    }
    return Record(**{**fields, **changes})


def start_run(folder: Path, **changes: Any) -> Path:
    """Make the folder of a run that has not done a round: of the preset for digits, with changes."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(preset("digits").changed(changes).resolved().to_toml())
    return folder


def append_records(folder: Path, *records: Record, mode: str = "a") -> None:
    """Write rounds as a run does: a line each, at the end of rounds.jsonl."""
    with (folder / "rounds.jsonl").open(mode) as lines:
        lines.writelines(json.dumps(r.as_dict()) + "\n" for r in records)
