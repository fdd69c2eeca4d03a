"""A small Fashion-MNIST, as its publisher has it, and its publisher's server."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from data_for_tests import FASHION_FILES
from sources_for_tests import FileServer, serve


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "published"
    folder.mkdir()
    for name, content in FASHION_FILES.items():
        (folder / name).write_bytes(gzip.compress(content))
    return folder


@pytest.fixture
def server(files: Path) -> Iterator[tuple[str, type[FileServer]]]:
    with serve(files) as address_and_handler:
        yield address_and_handler
