"""CIFAR's records."""

from __future__ import annotations

import hashlib

import numpy as np

from fedlga.learning.datasets.cifar import Cifar100


def test_records_in_any_order_give_the_same_tensors(monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 100, (8, 3074), np.uint8)
    for name, order in (("a", np.arange(8)), ("b", rng.permutation(8))):
        (tmp_path / name).mkdir()
        for split in ("train", "test"):
            (tmp_path / name / f"{split}.bin").write_bytes(records[order].tobytes())
    small = Cifar100()
    content = small.content(tmp_path / "a" / "train.bin")
    hashes = dict.fromkeys(("train.bin", "test.bin"), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(Cifar100, "files", hashes)
    (images, labels), _ = small.read(tmp_path / "a")
    (same, same_labels), _ = small.read(tmp_path / "b")
    assert np.array_equal(images, same)
    assert np.array_equal(labels, same_labels)
    assert set(labels.tolist()) == set(records[:, 1].tolist()), "the fine label is the second byte"
