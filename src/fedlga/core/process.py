"""Settings of this process: torch's threads and the C library's allocator."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
from collections.abc import Generator

import numpy as np
import torch


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Let torch use one thread inside the `with`, and put the number back after it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def seed_generators(seed: int) -> Generator[None]:
    """Seed the generators of Python, numpy and torch inside the `with`, and put their states back after it."""
    python, numpy = random.getstate(), np.random.get_state()
    cuda = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=cuda):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def count_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> None:
    """Let this process keep the memory of freed tensors for the next ones, if the C library is glibc.

    It cannot be undone, so only processes of our own call it: the command line and the pool's workers. By default glibc
    may return a gradient's pages to the system after every step and get them again, zeroed, for the next: a step of the
    MLP then takes up to twice as long, depending on what lies beside them.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # <malloc.h>
    with contextlib.suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, value in ((trim_threshold, 1 << 30), (top_pad, 1 << 26), (mmap_threshold, 1 << 25)):
            mallopt(parameter, value)
