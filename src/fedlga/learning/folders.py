"""Folders with one device's data each: a file of arrays or a table, or a folder of images for each class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedlga.core.settings import BadInput
from fedlga.learning.examples import Constant, Examples, LazyExamples, TensorExamples, collate_pairs

MOST_IN_MEMORY = 1 << 28  # bytes of images that are kept in memory; more are read when a batch needs them
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
GREY = 2  # dimensions of an image without colours


def list_folder(where: str, folder: Path, takes: str) -> dict[str, Any]:
    """Return what each device's file or folder of images holds, by name."""
    if not folder.is_dir():
        raise BadInput(f"{where}: there is no folder {str(folder)!r}; {takes}")
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    numbered = all(re.fullmatch(r"\d+", entry.stem) for entry in entries)
    entries.sort(key=lambda entry: (int(entry.stem) if numbered else 0, entry.name))
    folders = [entry for entry in entries if entry.is_dir()]
    if folders:
        labels = sorted({inner.name for device in folders for inner in device.iterdir() if inner.is_dir()})
        if not labels:
            raise BadInput(
                f"{where}: {str(folders[0])!r} has no folder of images a class; "
                f"a folder of images takes DEVICE/CLASS/*.png"
            )
        return {device.name: ImageFolder(device, labels) for device in folders}
    names = [entry.stem for entry in entries]
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise BadInput(f"{where}: {str(folder)!r} has two files of device {doubles[0]!r}; it takes one file a device")
    return {entry.stem: read_file(where, entry) for entry in entries}


def read_file(where: str, file: Path) -> Any:
    """Return what one device's file holds. Nothing in a file can run code."""
    try:
        if file.suffix == ".npz":
            with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
                return arrays["x"], arrays["y"]
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

            tensors: Any = load_file(file)
            return tensors["x"], tensors["y"]
        if file.suffix in (".csv", ".parquet"):
            import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

            return pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
    except ImportError as error:
        raise BadInput(f"{where}: {file.name} needs pandas: pip install 'fedlga[pandas]'") from error
    except KeyError as error:
        raise BadInput(f"{where}: {str(file)!r} holds no array {error}; it takes arrays x and y") from error
    except Exception as error:  # a damaged file may make a reader raise anything
        raise BadInput(f"{where}: {str(file)!r} cannot be read ({describe_reason(error)})") from error
    raise BadInput(
        f"{where}: {str(file)!r} is not a device's data; a folder takes .npz, .safetensors, .csv, .parquet "
        "or folders of images"
    )


def describe_reason(error: BaseException) -> str:
    """Return an error in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__


@dataclass(frozen=True)
class ImageFolder:
    """One device's folder with a folder of images for each class. It is a torch dataset too: image i and its class."""

    folder: Path
    labels: Sequence[str]

    def files(self) -> list[tuple[str, int]]:
        """Return the images with their classes."""
        known = {label: number for number, label in enumerate(self.labels)}
        return [
            (str(file), known[inner.name])
            for inner in sorted(self.folder.iterdir())
            if inner.is_dir()
            for file in sorted(inner.iterdir())
            if file.suffix.lower() in IMAGES
        ]

    def examples(self, where: str) -> Examples:
        """Return the images as float32 from 0 to 1, channels first: in memory if they are few, else read lazily."""
        files = self.files()
        if not files:
            raise BadInput(f"{where}: {str(self.folder)!r} holds no images ({', '.join(IMAGES)})")
        dataset = _ImageFiles(tuple(files), where)
        labels = torch.tensor([label for _, label in files], device="cpu")
        first = dataset[0][0]
        if first.numel() * 4 * len(files) > MOST_IN_MEMORY:
            return LazyExamples(dataset, collate_pairs, known_targets=Constant(labels))
        images = [dataset[i][0] for i in range(len(files))]
        for (file, _), image in zip(files, images, strict=True):
            if image.shape != first.shape:
                raise BadInput(
                    f"{where}: {file!r} is {' x '.join(map(str, image.shape))}, and {files[0][0]!r} "
                    f"{' x '.join(map(str, first.shape))}; it takes images of one size"
                )
        return TensorExamples(torch.stack(images), labels)


@dataclass(frozen=True)
class _ImageFiles:
    files: tuple[tuple[str, int], ...]
    where: str

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        file, label = self.files[index]
        try:
            with Image.open(file) as image:
                if image.mode.startswith("I"):  # grey with 16 bits
                    array = np.asarray(image, np.float32) / 65535
                else:
                    plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
                    array = np.asarray(plain, np.float32) / 255
        except Exception as error:  # an image that is damaged, or too large, may make the reader raise anything
            raise BadInput(f"{self.where}: {file!r} cannot be read as an image ({error})") from error
        channels_first = array[None] if array.ndim == GREY else array.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(channels_first)), label
