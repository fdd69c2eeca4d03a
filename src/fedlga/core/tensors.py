"""Named vectors in a file, written atomically: safetensors, so that reading one never runs code."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlga.core.files import sync

if TYPE_CHECKING:
    from fedlga.core.types import Memory


def save_tensors(
    path: Path, vectors: Memory, metadata: Mapping[str, str] | None = None, *, durable: bool = False
) -> None:
    """Write named vectors. An interruption leaves the old file or the new one, never half of it.

    `durable`: so does a power cut, once the folder is synced too. It costs a wait for the disk.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]

    half = path.with_name(path.name + ".half")
    plain = {name: v.detach().contiguous() for name, v in vectors.items()}
    addresses: set[int] = set()
    for name, v in plain.items():  # safetensors refuses two names for one vector
        address = v.untyped_storage().data_ptr()
        plain[name] = v.clone() if address in addresses else v
        addresses.add(address)
    try:
        save_file(plain, half, metadata=dict(metadata) if metadata else None)  # an empty one could not be read back
    except SafetensorError as error:  # a full disk, for example
        raise OSError(errno.EIO, str(error), str(half)) from error
    if durable:
        sync(half)
    half.replace(path)


def load_tensors(path: Path) -> tuple[Memory, dict[str, str]]:
    """Return what `save_tensors` wrote: the vectors and the metadata.

    The vectors are copies, aligned as torch aligns its own tensors: the last bit of a dot product depends on alignment,
    and a run that is resumed from a file must not differ from one that was not.
    """
    from safetensors import safe_open  # pyright: ignore[reportUnknownVariableType]

    opened: Any = safe_open(path, framework="pt")
    with opened as file:
        return {name: file.get_tensor(name).clone() for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
