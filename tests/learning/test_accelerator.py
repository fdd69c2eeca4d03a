"""Where tensors are computed: the names that are taken, and those that are not."""

from __future__ import annotations

import pytest
import torch

from fedlga.core.settings import BadInput
from fedlga.learning.accelerator import choose_device


def without_gpus(monkeypatch, *, cuda: int = 0, mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


@pytest.mark.parametrize(
    ("cuda", "mps", "auto"), [(0, False, "cpu"), (0, True, "mps"), (1, False, "cuda"), (2, True, "cuda")]
)
def test_auto_takes_the_best_there_is(monkeypatch, cuda, mps, auto):
    without_gpus(monkeypatch, cuda=cuda, mps=mps)
    assert choose_device("auto") == torch.device(auto)
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda", "device: got 'cuda', and torch sees no CUDA GPU here; it takes "),
        ("cuda:0", "device: got 'cuda:0', and torch sees no CUDA GPU here; it takes "),
        ("mps", "device: got 'mps', and torch sees no Apple GPU here; it takes "),
        ("meta", "device: got 'meta'; it takes "),
        ("gpu", "device: got 'gpu'; it takes "),
        ("cuda:x", "device: got 'cuda:x'; it takes "),
        ("", "device: got ''; it takes "),
        ("cpu:5", "device: got 'cpu:5'; it takes "),
    ],
)
def test_what_is_not_here_is_refused_in_one_line(monkeypatch, name, message):
    without_gpus(monkeypatch)
    with pytest.raises(BadInput) as error:
        choose_device(name)
    assert str(error.value) == f"{message}cpu, cuda, cuda:N, mps or auto"


def test_a_gpu_beyond_those_here_is_refused(monkeypatch):
    without_gpus(monkeypatch, cuda=2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(BadInput, match="'cuda:2', and torch sees 2 CUDA GPU here"):
        choose_device("cuda:2")
