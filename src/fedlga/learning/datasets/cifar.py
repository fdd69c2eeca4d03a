"""CIFAR-10 and CIFAR-100: Krizhevsky 2009, in the publisher's binary files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from fedlga.learning.datasets.base import Dataset
from fedlga.learning.datasets.sources import NpmCifar10, Publisher

if TYPE_CHECKING:
    from fedlga.learning.datasets.base import Arrays

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
_ADDRESS = "https://www.cs.toronto.edu/~kriz/"


@dataclass(frozen=True)
class Cifar(Dataset):
    """Binary records: one or two label bytes, then the red, green and blue planes."""

    train: ClassVar[tuple[str, ...]] = ()
    test: ClassVar[tuple[str, ...]] = ()
    label_bytes: ClassVar[int] = 1
    any_order: ClassVar[bool] = False  # copies differ in the order of records: sort them, so that all give the same

    def content(self, file: Path) -> bytes:  # noqa: D102
        content = file.read_bytes()
        size = self.label_bytes + 3072
        if not self.any_order or len(content) % size:
            return content
        records = np.frombuffer(content, dtype=f"S{size}")
        return records[np.argsort(records, kind="stable")].tobytes()

    def read(self, folder: Path) -> tuple[Arrays, Arrays]:  # noqa: D102
        def split(names: Sequence[str]) -> Arrays:
            parts = [np.frombuffer(self.verify(folder / name), np.uint8) for name in names]
            records = np.concatenate(parts).reshape(-1, self.label_bytes + 3072)
            return records[:, self.label_bytes :].reshape(-1, 3, 32, 32), records[:, self.label_bytes - 1]

        return split(self.train), split(self.test)


@final
@dataclass(frozen=True)
class Cifar10(Cifar):
    """50,000 + 10,000 colour images of 32 x 32, 10 classes."""

    title = "CIFAR-10: 50,000 + 10,000 colour images of 32 x 32, 10 classes"
    classes = 10
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    folder = "cifar-10-batches-bin"
    files = _CIFAR10_FILES
    sources = (
        Publisher(
            [_ADDRESS + "cifar-10-binary.tar.gz"],
            members=tuple(f"cifar-10-batches-bin/{name}" for name in _CIFAR10_FILES),
        ),
        NpmCifar10(),
    )
    train = tuple(f"data_batch_{k}.bin" for k in range(1, 6))
    test = ("test_batch.bin",)


@final
@dataclass(frozen=True)
class Cifar100(Cifar):
    """50,000 + 10,000 colour images of 32 x 32, 100 classes."""

    title = "CIFAR-100: 50,000 + 10,000 colour images of 32 x 32, 100 classes"
    classes = 100
    mean = (0.5071, 0.4866, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    folder = "cifar-100-binary"
    files = _CIFAR100_FILES
    sources = (
        Publisher(
            [_ADDRESS + "cifar-100-binary.tar.gz"],
            members=tuple(f"cifar-100-binary/{name}" for name in _CIFAR100_FILES),
        ),
    )
    train = ("train.bin",)
    test = ("test.bin",)
    label_bytes = 2
    any_order = True
