"""Compile the package's C files with the machine's compiler on first use, and keep the result in the user's cache.

Without a compiler everything works too, and results differ only in the last bits: each caller has a fallback.
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

from fedlga.core.files import replace_synced

FLAGS = ("-O3", "-march=native", "-fPIC", "-shared")


@cache
def load_library(source: Path) -> ctypes.CDLL | None:
    """Return the functions of a C file; None if it cannot be compiled or loaded here."""
    try:
        return ctypes.CDLL(str(_compile(source)))
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError):  # no home folder, CC is not a command, ...
        return None


def _compile(source: Path) -> Path:
    """Return the compiled file. Its name holds all it depends on: the source, the compiler and the processor."""
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
            replace_synced(Path(half) / name, file)  # one of zeros could not be loaded, nor would it be made again
    return file


@cache
def _version(compiler: tuple[str, ...]) -> bytes:
    return subprocess.run([*compiler, "--version"], capture_output=True, check=True, timeout=60).stdout  # noqa: S603


def _processor() -> str:
    """Return what -march=native depends on, so that machines that share a home folder do not share the file."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model"))})
    return "\n".join([platform.machine(), platform.processor(), *features])
