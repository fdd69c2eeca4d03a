"""C files of this folder: built with the machine's compiler on first use, and then kept.

Where there is no compiler everything works without, and gives the same but for the last bits: each caller has a plain
way of its own.
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
from functools import cache
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fPIC", "-shared")


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The functions of NAME.c; None where they cannot be had."""
    try:
        return ctypes.CDLL(str(_built(Path(__file__).with_name(f"{name}.c"))))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):  # no home folder, a CC that is no command
        return None


def _built(source: Path) -> Path:
    """The compiled file. Its name holds all it depends on: the source, the compiler and this kind of processor."""
    compiler = shlex.split(os.environ.get("CC", "")) or [c for c in ("cc", "gcc", "clang") if shutil.which(c)][:1]
    if not compiler:
        raise FileNotFoundError("no C compiler")
    parts = (source.read_bytes(), _version(tuple(compiler)), " ".join(FLAGS).encode(), _processor().encode())
    name = f"{source.stem}-{hashlib.sha256(b'|'.join(parts)).hexdigest()[:16]}.so"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlga" / "kernels"
    file = folder / name
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as half:
            command = [*compiler, *FLAGS, "-o", str(Path(half) / name), str(source), "-lm"]
            subprocess.run(command, capture_output=True, check=True, timeout=300)  # noqa: S603
            (Path(half) / name).replace(file)
    return file


@cache
def _version(compiler: tuple[str, ...]) -> bytes:
    return subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=60).stdout  # noqa: S603


def _processor() -> str:
    """What -march=native looks at, so that a home shared by unequal machines serves each its own."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    said = sorted({line for line in lines if line.startswith(("flags", "Features", "model"))})
    return "\n".join([platform.machine(), platform.processor(), *said])
