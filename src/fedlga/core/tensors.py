"""Named vectors in a file, written in one go: safetensors, so that reading one never runs code. And their memory."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .types import Memory


def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors for the next ones, where the C library is glibc.

    Left alone it may give a gradient's pages back to the system after every step and get them again, zeroed, for the
    next: a step of the MLP then takes up to twice as long, or not, depending on what lies beside them.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # <malloc.h>
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for setting, value in ((trim_threshold, 1 << 30), (top_pad, 1 << 26), (mmap_threshold, 1 << 25)):
            mallopt(setting, value)


def save_tensors(path: Path, vectors: Memory, metadata: Mapping[str, str] | None = None) -> None:
    """A break leaves the old file or the new, never half of it."""
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    half = path.with_name(path.name + ".half")
    plain = {name: v.detach().contiguous() for name, v in vectors.items()}
    seen: set[int] = set()
    for name, v in plain.items():  # two names for one vector are fine with us, and not with safetensors
        place = v.untyped_storage().data_ptr()
        plain[name] = v.clone() if place in seen else v
        seen.add(place)
    save_file(plain, half, metadata=dict(metadata) if metadata else None)  # an empty one could not be read back
    half.replace(path)


def load_tensors(path: Path) -> tuple[Memory, dict[str, str]]:
    """What `save_tensors` wrote: the vectors and the metadata.

    Copies, which lie where torch puts tensors of its own: dot products depend on that in their last bit, and a run that
    is resumed from a file must not differ from one that was not.
    """
    from safetensors import safe_open  # pyright: ignore[reportUnknownVariableType]

    opened: Any = safe_open(path, framework="pt")
    with opened as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
