"""Fetching and loading: every source, checked byte by byte, with a small Fashion-MNIST in place of the real one."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import data_for_tests
from data_for_tests import FASHION_FILES, FASHION_LABELS, FASHION_PIXELS, fashion_hashes, fashion_publisher
from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.learning.datasets.cache import cache_folder, fetch, load
from fedlga.learning.datasets.cifar import Cifar100
from fedlga.learning.datasets.fashion_mnist import FashionMnist
from fedlga.learning.datasets.sources import DebianPackage, Publisher, Source
from sources_for_tests import names_in, write_debian_clients

pytestmark = pytest.mark.slow


def install(monkeypatch: pytest.MonkeyPatch, *sources: Source) -> None:
    """Put the small Fashion-MNIST in place of the real one."""
    monkeypatch.setattr(FashionMnist, "files", fashion_hashes())
    monkeypatch.setattr(FashionMnist, "sources", sources)


def is_complete(folder: Path) -> bool:
    return not create("dataset", "fashion-mnist").missing(folder)


def test_from_the_publisher(monkeypatch, tmp_path, server):
    install(monkeypatch, fashion_publisher(server[0]))
    progress: list[tuple[str, int, int | None]] = []
    folder = fetch("fashion-mnist", tmp_path / "cache", lambda *now: progress.append(now))
    assert names_in(tmp_path / "cache") == {"fashion-mnist", *(f"fashion-mnist/{name}" for name in FASHION_FILES)}
    assert progress[-1][1] == progress[-1][2], "progress ends with all bytes"
    data = load("fashion-mnist", tmp_path / "cache", normalise=False)
    expected = torch.from_numpy(FASHION_PIXELS["train"].astype(np.float32) / 255).reshape(12, 1, 28, 28)
    torch.testing.assert_close(data.train_images, expected)
    assert data.train_labels.tolist() == FASHION_LABELS["train"].tolist()
    assert data.shape == (1, 28, 28)
    assert folder.name == "fashion-mnist"


def test_every_source_gives_the_same_tensors_in_the_same_order(monkeypatch, tmp_path, server, files):
    write_debian_clients(tmp_path / "bin", files)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    by_source = {}
    for source in (fashion_publisher(server[0]), DebianPackage("thing", tuple(FASHION_FILES))):
        install(monkeypatch, source)
        by_source[source.name] = load("fashion-mnist", tmp_path / source.name.replace("/", "_"))
    one, other = by_source.values()
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_if_the_publisher_is_unreachable_a_package_is_used(monkeypatch, tmp_path, files):
    write_debian_clients(tmp_path / "bin", files)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    install(monkeypatch, fashion_publisher("http://127.0.0.1:9"), DebianPackage("thing", tuple(FASHION_FILES)))
    fetch("fashion-mnist", tmp_path / "cache")
    assert is_complete(tmp_path / "cache" / "fashion-mnist")
    assert "partial" not in names_in(tmp_path / "cache")


def test_a_broken_download_continues_where_it_stopped(monkeypatch, tmp_path, server):
    address, handler = server
    install(monkeypatch, fashion_publisher(address))
    handler.breaks_after = 1000
    with pytest.raises(BadInput, match="broke off after 1000 of"):
        fetch("fashion-mnist", tmp_path)
    handler.breaks_after = None
    fetch("fashion-mnist", tmp_path)
    assert handler.ranges[:2] == [None, "bytes=1000-"]
    assert is_complete(tmp_path / "fashion-mnist")


def test_a_broken_download_starts_again_if_the_server_cannot_continue_it(monkeypatch, tmp_path, server):
    address, handler = server
    install(monkeypatch, fashion_publisher(address))
    handler.breaks_after, handler.resumes = 1000, False
    with pytest.raises(BadInput, match="broke off"):
        fetch("fashion-mnist", tmp_path)
    handler.breaks_after = None
    fetch("fashion-mnist", tmp_path)
    assert is_complete(tmp_path / "fashion-mnist")


def test_files_with_other_contents_never_reach_the_cache(monkeypatch, tmp_path, server, files):
    (files / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other labels"))
    install(monkeypatch, fashion_publisher(server[0]))
    with pytest.raises(BadInput, match="its contents are not the publisher's"):
        fetch("fashion-mnist", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda whole: whole[:-100], "is damaged; delete it and fetch it again"),
        (lambda whole: b"", "is damaged"),
        (lambda whole: whole[:50] + b"\0\0" + whole[52:], "is damaged"),
        (lambda whole: gzip.compress(b"something else"), "its contents are not the publisher's"),
    ],
    ids=["truncated", "empty", "corrupt", "another"],
)
def test_a_damaged_file_in_the_cache_is_found_when_it_is_read(monkeypatch, tmp_path, files, damage, said):
    install(monkeypatch)
    (tmp_path / "cache").mkdir()
    files.rename(tmp_path / "cache" / "fashion-mnist")
    file = tmp_path / "cache" / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(BadInput, match=said) as caught:
        load("fashion-mnist", tmp_path / "cache")
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_source_the_error_says_which_files_to_put_where(monkeypatch, tmp_path):
    monkeypatch.setattr(Cifar100, "sources", (Publisher(["http://127.0.0.1:9/c.tar.gz"]),))
    with pytest.raises(BadInput) as caught:
        load("cifar-100", tmp_path)
    assert f"put the publisher's files train.bin, test.bin into {tmp_path}/cifar-100-binary" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path) == set()


def test_two_processes_that_fetch_at_once_both_get_the_data(tmp_path, server):
    """The second waits for the first; each in a process of its own, as two runs would be."""
    address, handler = server
    script = tmp_path / "fetch.py"
    script.write_text(
        "from pathlib import Path\nfrom data_for_tests import fashion_hashes, fashion_publisher\n"
        "from fedlga.learning.datasets.cache import fetch\n"
        "from fedlga.learning.datasets.fashion_mnist import FashionMnist\n"
        f"FashionMnist.files, FashionMnist.sources = fashion_hashes(), (fashion_publisher({address!r}),)\n"
        f"fetch('fashion-mnist', Path({str(tmp_path / 'cache')!r}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(data_for_tests.__file__).parent)}
    both = [subprocess.Popen([sys.executable, str(script)], env=environment) for _ in range(2)]
    assert [process.wait(timeout=600) for process in both] == [0, 0]
    assert len(handler.ranges) == len(FASHION_FILES), "what the first fetched, the second did not fetch again"


def test_the_user_chooses_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLGA_DATA", str(tmp_path))
    assert cache_folder() == tmp_path
    assert cache_folder("/elsewhere") == Path("/elsewhere")
    monkeypatch.delenv("FEDLGA_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/fedlga")


def test_a_data_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="data folder: cannot write to"):
        fetch("fashion-mnist", tmp_path / "file")
