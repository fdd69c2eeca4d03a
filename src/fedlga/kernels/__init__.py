"""Compiled code for the models that have some: built with the machine's C compiler on first use, and then kept.

Where there is no compiler, or the model or the setting is not one it serves, the plain path of local.py does the work.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from ..models import FlatModel
    from ..types import Local, Task, Vector

SOURCE = Path(__file__).with_name("mlp.c")
FLAGS = ("-O3", "-march=native", "-fPIC", "-shared")
_POINTER, _COUNT, _NUMBER = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


@dataclass(frozen=True)
class FusedMLP:
    """SGD on a network of one hidden layer; the numbers of sgd() in local.py, but for the order of their sums."""

    inputs: int
    hidden: int
    classes: int

    @classmethod
    def fitting(cls, model: FlatModel) -> FusedMLP | None:
        """The kernel for a model, if it is one of Flatten, Linear, ReLU, Linear and the sizes are right."""
        # A subclass or a hook may do anything in between; a layer used twice would be a child only once.
        layers = list(model.module) if type(model.module) is nn.Sequential else []
        if any(vars(part)["_forward_hooks"] or vars(part)["_forward_pre_hooks"] for part in [model.module, *layers]):
            return None
        if [type(layer) for layer in layers] != [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear]:
            return None
        first, second = layers[1], layers[3]
        assert isinstance(first, nn.Linear)
        assert isinstance(second, nn.Linear)
        wanted = [*first.parameters(), *second.parameters()]
        plain = first.bias is not None and second.bias is not None and all(p.requires_grad for p in wanted)  # pyright: ignore[reportUnnecessaryComparison]
        sizes = first.in_features % 16 == 0 and first.out_features % 8 == 0
        if not plain or not sizes or model.criterion is not functional.cross_entropy or compiled() is None:
            return None
        return cls(first.in_features, first.out_features, second.out_features)

    def sgd(
        self, task: Task, local: Local, images: torch.Tensor, labels: torch.Tensor, batches: Sequence[torch.Tensor]
    ) -> tuple[Vector, int, float]:
        """What sgd() in local.py returns: delta, the steps done and the mean loss. `batches` are rows of the images."""
        train = compiled()
        assert train is not None
        if not batches:
            return torch.zeros_like(task.w), 0, 0.0
        w = task.w.clone()
        order = torch.cat(list(batches))
        ends = torch.tensor([len(batch) for batch in batches]).cumsum(0)
        velocity = torch.zeros_like(w) if task.momentum else None
        vectors = (w, images, labels, order, ends)
        assert all(v.is_contiguous() for v in vectors)
        sizes = (len(batches), self.inputs, self.hidden, self.classes)
        rates = (task.lr, task.momentum, local.pull)
        also = (task.w, local.constant, velocity)
        loss = train(*map(_address, vectors), *sizes, *rates, *map(_address, also))
        if loss == -1:
            raise MemoryError("no memory for a batch")
        return w.sub_(task.w), len(batches), loss


def _address(vector: Vector | None) -> int | None:
    return None if vector is None else vector.data_ptr()


@cache
def compiled() -> Any | None:
    """The function `train` of mlp.c; None where it cannot be had."""
    try:
        library = ctypes.CDLL(str(_built()))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):  # no home folder, a CC that is no command
        return None
    train = library.train
    train.argtypes = [_POINTER] * 5 + [_COUNT] * 4 + [_NUMBER] * 3 + [_POINTER] * 3
    train.restype = ctypes.c_double
    return train


def _built() -> Path:
    """The compiled file. Its name holds all it depends on: the source, the compiler and this kind of processor."""
    compiler = shlex.split(os.environ.get("CC", "")) or [c for c in ("cc", "gcc", "clang") if shutil.which(c)][:1]
    if not compiler:
        raise FileNotFoundError("no C compiler")
    version = subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=60).stdout  # noqa: S603
    parts = (SOURCE.read_bytes(), version, " ".join(FLAGS).encode(), _processor().encode())
    name = f"mlp-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlga" / "kernels"
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as half:
            command = [*compiler, *FLAGS, "-o", str(Path(half) / name), str(SOURCE), "-lm"]
            subprocess.run(command, capture_output=True, check=True, timeout=300)  # noqa: S603
            (Path(half) / name).replace(file)
    return file


def _processor() -> str:
    """What -march=native looks at, so that a home shared by unequal machines serves each its own."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    said = sorted({line for line in lines if line.startswith(("flags", "Features", "model"))})
    return "\n".join([platform.machine(), platform.processor(), *said])
