"""fedlga doctor: what is installed here, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

OK, MISSING, BROKEN = "ok", "missing", "broken"
PACKAGES = {  # distribution: the extra that installs it, and what it is for
    "pandas": ("pandas", "frames of runs, tables as data"),
    "flwr": ("flower", "real machines, through Flower"),
    "ray": ("flower", "Flower's simulation"),
    "datasets": ("datasets", "Hugging Face's datasets"),
    "flwr-datasets": ("datasets", "Flower's partitioners"),
    "tensorboard": ("tensorboard", "--track tensorboard"),
    "mlflow-skinny": ("mlflow", "--track mlflow"),
    "wandb": ("wandb", "--track wandb"),
}
INSTEAD = {"mlflow-skinny": "mlflow"}  # also serves


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for."""

    state: str  # ok; missing: it can be done without; broken: it must be mended
    name: str
    text: str


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--data-dir", metavar="DIR", help="Where data is kept. Default: $FEDLGA_DATA, or your cache.")
def doctor(as_json: bool, data_dir: str | None) -> int:
    """Show what is installed here, what is missing and how to get it.

    `missing` is what fedlga can do without. The exit code is 1 if something is broken.
    """
    from fedlga.cli.listing import echo_wrapped

    findings = list(examine(data_dir))
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            echo_wrapped(f"{finding.state:<8} {finding.name:<14} {finding.text}", indent=24)
    return 1 if any(finding.state == BROKEN for finding in findings) else 0


def examine(data_dir: str | None) -> Iterator[Finding]:
    """Look for everything that fedlga uses."""
    yield _find_versions()
    yield _find_torch()
    yield _find_cores()
    yield _find_compiler()
    yield _find_gpu()
    yield from _find_caches(data_dir)
    for name, (extra, purpose) in PACKAGES.items():
        yield _find_package(name, extra, purpose)
    yield _find_browser()


def _find_versions() -> Finding:
    from fedlga import __version__

    machine = f"{platform.system()} {platform.machine()}"
    return Finding(OK, "fedlga", f"{__version__}, Python {platform.python_version()}, {machine}")


def _find_torch() -> Finding:
    try:
        import numpy as np
        import torch
    except (ImportError, OSError) as error:
        return Finding(BROKEN, "torch", f"cannot be imported ({error}); pip install torch")
    return Finding(OK, "torch", f"{torch.__version__}, numpy {np.__version__}")


def _find_cores() -> Finding:
    from fedlga.core.process import count_cores

    return Finding(OK, "cores", f"{count_cores()} for this process, {os.cpu_count()} in the machine")


def _find_compiler() -> Finding:
    from fedlga.core.kernels.compiler import load_library
    from fedlga.learning.kernels import mlp

    named = os.environ.get("CC") or next((c for c in ("cc", "gcc", "clang") if shutil.which(c)), None)
    if named is None:
        return Finding(MISSING, "C compiler", "local training uses torch alone, slower for the MLP; install gcc")
    if load_library(Path(mlp.__file__).with_name("mlp.c")) is None:
        return Finding(MISSING, "C compiler", f"{named} is there but cannot build the kernel; torch is used alone")
    return Finding(OK, "C compiler", f"{named}; local training of the MLP is compiled")


def _find_gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        return Finding(OK, "GPU", f"{torch.cuda.get_device_name(0)}: --device cuda (nobody has measured it)")
    if torch.backends.mps.is_available():
        return Finding(OK, "GPU", "Apple's: --device mps (nobody has measured it)")
    return Finding(MISSING, "GPU", "torch sees none; runs use the CPU")


def _find_caches(data_dir: str | None) -> Iterator[Finding]:
    from fedlga.cli.data import find_files
    from fedlga.core.files import try_writing
    from fedlga.core.registry import names_of
    from fedlga.learning.datasets.cache import cache_folder

    folder = cache_folder(data_dir)
    try:
        try_writing(folder)
    except OSError as error:
        yield Finding(BROKEN, "cache", f"cannot write to {folder} ({error.strerror}); set FEDLGA_DATA, or --data-dir")
        return
    yield Finding(OK, "cache", f"{folder} ({shutil.disk_usage(_nearest(folder)).free / 1e9:.0f} GB free)")
    for name in (*names_of("dataset"), *names_of("task")):
        files = find_files(name)
        if files.files and files.missing(folder / files.folder):
            yield Finding(MISSING, name, f"fetched on first use, or by: fedlga data fetch {name}")
        else:
            yield Finding(OK, name, "fetched" if files.files else "part of the package")


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.resolve().parents) if path.exists())


def _find_package(name: str, extra: str, purpose: str) -> Finding:
    for distribution in (name, INSTEAD.get(name, name)):
        try:
            return Finding(OK, distribution, f"{importlib.metadata.version(distribution)}: {purpose}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Finding(MISSING, name, f"{purpose}; pip install 'fedlga[{extra}]'")


def _find_browser() -> Finding:
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser and shutil.which("chromedriver"):
        return Finding(OK, "Chromium", f"{browser}, with its driver: tests of pages")
    return Finding(MISSING, "Chromium", "only tests of pages need it: make browser")
