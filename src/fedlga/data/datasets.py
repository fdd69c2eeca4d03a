"""The datasets: Fashion-MNIST, CIFAR-10 and CIFAR-100 in their publishers' formats, and digits that need no fetch."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tempfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

from ..settings import BadInput, choose
from .sources import DebianPackage, NpmCifar10, Progress, Publisher, Source, Unreachable

if TYPE_CHECKING:
    import torch

    from ..types import Array

    Arrays = tuple[Array, Array]  # images as uint8 (count, channels, height, width), labels


@dataclass(frozen=True)
class Data:
    """A dataset ready for training: images as float32 (count, channels, height, width), labels as int64."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.train_images.shape
        return channels, height, width


@dataclass(frozen=True)
class Dataset(ABC):
    """One dataset: what it is, which files hold it, and what their contents must hash to."""

    title: str
    classes: int
    mean: tuple[float, ...]  # of the training pixels, a channel each, on a scale from 0 to 1
    std: tuple[float, ...]
    folder: str = ""
    files: Mapping[str, str] = field(default_factory=dict[str, str])  # and the SHA-256 of what each holds
    sources: Sequence[Source] = ()
    top: int = 255  # the largest pixel value

    @abstractmethod
    def arrays(self, folder: Path) -> tuple[Arrays, Arrays]:
        """Training and test data from the files in `folder`."""

    def content(self, file: Path) -> bytes:
        """What a file holds, in the one order that its hash is taken of."""
        return file.read_bytes()

    def checked(self, file: Path) -> bytes:
        """What a file holds, when it is what the publisher gave out."""
        try:
            content = self.content(file)
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(f"{_damaged(file)} ({_reason(error)})") from error
        if hashlib.sha256(content).hexdigest() != self.files[file.name]:
            raise BadInput(f"{_damaged(file)} (its contents are not the publisher's)")
        return content

    def missing(self, folder: Path) -> list[str]:
        """Files that are not there."""
        return [name for name in self.files if not os.path.isfile(folder / name)]  # noqa: PTH113 (raises nothing)


@final
@dataclass(frozen=True)
class FashionMnist(Dataset):
    """IDX files, each compressed; packagers compress anew, so the hash is of what is inside."""

    def content(self, file: Path) -> bytes:  # noqa: D102
        return gzip.decompress(file.read_bytes())

    def arrays(self, folder: Path) -> tuple[Arrays, Arrays]:  # noqa: D102
        def split(name: str) -> Arrays:
            pixels = np.frombuffer(self.checked(folder / f"{name}-images-idx3-ubyte.gz"), np.uint8, offset=16)
            labels = np.frombuffer(self.checked(folder / f"{name}-labels-idx1-ubyte.gz"), np.uint8, offset=8)
            return pixels.reshape(-1, 1, 28, 28), labels

        return split("train"), split("t10k")


@final
@dataclass(frozen=True)
class Cifar(Dataset):
    """Binary records: one or two label bytes, then the red, green and blue planes."""

    train: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    label_bytes: int = 1
    any_order: bool = False  # records are put into one order, so that every copy gives the same tensors

    def content(self, file: Path) -> bytes:  # noqa: D102
        content = file.read_bytes()
        size = self.label_bytes + 3072
        if not self.any_order or len(content) % size:
            return content
        records = np.frombuffer(content, dtype=f"S{size}")
        return records[np.argsort(records, kind="stable")].tobytes()

    def arrays(self, folder: Path) -> tuple[Arrays, Arrays]:  # noqa: D102
        def split(names: Sequence[str]) -> Arrays:
            parts = [np.frombuffer(self.checked(folder / name), np.uint8) for name in names]
            records = np.concatenate(parts).reshape(-1, self.label_bytes + 3072)
            return records[:, self.label_bytes :].reshape(-1, 3, 32, 32), records[:, self.label_bytes - 1]

        return split(self.train), split(self.test)


@final
@dataclass(frozen=True)
class Digits(Dataset):
    """1,797 handwritten digits of 8 x 8 pixels that come with the package; every fifth is for testing."""

    def arrays(self, folder: Path) -> tuple[Arrays, Arrays]:  # noqa: D102
        with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as stored:
            images, labels = stored["images"][:, None], stored["labels"]
        test = np.arange(len(labels)) % 5 == 4  # noqa: PLR2004
        return (images[~test], labels[~test]), (images[test], labels[test])


_FASHION_FILES = {
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_CIFAR10_FILES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR100_FILES = {  # of the records in sorted order
    "train.bin": "e087818905fce27ff63616d8f344858809aab7e66060ba0e155a3bb18453ec1e",
    "test.bin": "b8278c7d1bf36d32ce3e9f2a02eb2c80c9458dcf9a15571d082434cc68f5f5ce",
}
_FASHION_ADDRESS = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"  # bytes are checked, so http will do
_CIFAR_ADDRESS = "https://www.cs.toronto.edu/~kriz/"

DATASETS: dict[str, Dataset] = {
    "fashion-mnist": FashionMnist(
        title="Fashion-MNIST: 60,000 + 10,000 grey images of 28 x 28, 10 kinds of clothing",
        classes=10,
        mean=(0.2860,),
        std=(0.3530,),
        folder="fashion-mnist",
        files=_FASHION_FILES,
        sources=(
            Publisher([_FASHION_ADDRESS + name for name in _FASHION_FILES]),
            DebianPackage("dataset-fashion-mnist", tuple(_FASHION_FILES)),
        ),
    ),
    "cifar-10": Cifar(
        title="CIFAR-10: 50,000 + 10,000 colour images of 32 x 32, 10 classes",
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        folder="cifar-10-batches-bin",
        files=_CIFAR10_FILES,
        sources=(
            Publisher(
                [_CIFAR_ADDRESS + "cifar-10-binary.tar.gz"],
                members=tuple(f"cifar-10-batches-bin/{name}" for name in _CIFAR10_FILES),
            ),
            NpmCifar10(),
        ),
        train=tuple(f"data_batch_{k}.bin" for k in range(1, 6)),
        test=("test_batch.bin",),
    ),
    "cifar-100": Cifar(
        title="CIFAR-100: 50,000 + 10,000 colour images of 32 x 32, 100 classes",
        classes=100,
        mean=(0.5071, 0.4866, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        folder="cifar-100-binary",
        files=_CIFAR100_FILES,
        sources=(
            Publisher(
                [_CIFAR_ADDRESS + "cifar-100-binary.tar.gz"],
                members=tuple(f"cifar-100-binary/{name}" for name in _CIFAR100_FILES),
            ),
        ),
        train=("train.bin",),
        test=("test.bin",),
        label_bytes=2,
        any_order=True,
    ),
    "digits": Digits(
        title="Digits: 1,438 + 359 grey images of 8 x 8, part of the package",
        classes=10,
        mean=(0.3058,),
        std=(0.3764,),
        top=16,
    ),
}


def cache_folder(given: str | Path | None = None) -> Path:
    """Where data is kept: the folder given, $FEDLGA_DATA, or the user's cache."""
    if given or (given := os.environ.get("FEDLGA_DATA")):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedlga"


def fetch(name: str, cache: Path, progress: Progress = lambda what, done, total: None) -> Path:
    """Make sure that a dataset's files are in the cache, from the first source that has them. Returns their folder."""
    dataset = DATASETS[choose("dataset", name, DATASETS)]
    folder = cache / dataset.folder
    if not dataset.missing(folder):
        return folder
    from filelock import FileLock

    # One fetch at a time: a second process waits, and finds the data there. The lock is kept out of the user's folder.
    lock = hashlib.sha256(str(cache.absolute()).encode()).hexdigest()[:16]
    try:
        with FileLock(Path(tempfile.gettempdir()) / f"fedlga-{lock}.lock", mode=0o666):
            return _fetch(name, dataset, cache, progress)
    except OSError as error:
        raise BadInput(
            f"data folder: cannot write to {str(cache)!r} ({_reason(error)}); set another with --data-dir"
        ) from error


def _fetch(name: str, dataset: Dataset, cache: Path, progress: Progress) -> Path:
    folder, partial = cache / dataset.folder, cache / "partial"
    if not dataset.missing(folder):
        return folder
    made = not cache.exists()
    partial.mkdir(parents=True, exist_ok=True)
    folder.mkdir(exist_ok=True)
    failures: list[str] = []
    try:
        for source in dataset.sources:
            staging = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=partial))
            try:
                source.fetch(staging, partial, progress)
                for file in dataset.files:
                    dataset.checked(staging / file)
                for file in dataset.files:
                    (staging / file).replace(folder / file)
                return folder
            except (Unreachable, BadInput) as error:
                failures.append(f"{source.name}: {error}")
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    finally:
        for empty in (partial, folder, *([cache] if made else [])):  # whatever may be continued later keeps its folder
            if empty.is_dir() and not any(empty.iterdir()):
                empty.rmdir()
    raise BadInput(
        f"dataset: {name} cannot be fetched here ({'; '.join(failures)}); "
        f"put the publisher's files {', '.join(dataset.files)} into {folder}"
    )


def load(name: str, cache: Path, *, normalise: bool = True, progress: Progress | None = None) -> Data:
    """A dataset as tensors, checked byte by byte, fetched first where it must be."""
    import torch

    dataset = DATASETS[choose("dataset", name, DATASETS)]
    folder = fetch(name, cache, progress or (lambda what, done, total: None)) if dataset.files else cache
    (train, train_labels), (test, test_labels) = dataset.arrays(folder)
    mean = torch.tensor(dataset.mean if normalise else (0.0,)).reshape(1, -1, 1, 1)
    std = torch.tensor(dataset.std if normalise else (1.0,)).reshape(1, -1, 1, 1)

    def images(array: Array) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).div_(dataset.top).sub_(mean).div_(std)

    return Data(
        train_images=images(train),
        train_labels=torch.from_numpy(train_labels.astype(np.int64)),
        test_images=images(test),
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        classes=dataset.classes,
    )


def _damaged(file: Path) -> str:
    return f"data: {str(file)!r} is damaged; delete it and fetch it again"


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
