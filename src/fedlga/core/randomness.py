"""All randomness: a generator for each purpose, from (seed, purpose, round, device) and nothing else.

So a run is the same on every backend, with any number of workers and after a resume, and two methods with one seed
meet the same devices, stragglers, batches and starting weights.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """The purpose of a draw. The numbers are part of every result: append, never reorder."""

    PARTITION = 1
    WEIGHTS = 2
    SAMPLE = 3
    FLEET = 4
    SPEEDS = 5
    DROPOUT = 6
    BATCHES = 7
    LAYERS = 8  # a model's own draws while it trains, such as dropout
    HOLD_OUT = 9  # which examples are for testing
    NETWORK = 10
    WINDOWS = 11  # when devices are there
    TAIL = 12  # of slow devices
    ESTIMATES = 13  # what is measured of a federation, outside of its training


def generator(seed: int, stream: Stream, *keys: int) -> np.random.Generator:
    """Return the generator for this purpose."""
    return np.random.default_rng((seed, stream, *keys))


def torch_seed(seed: int, stream: Stream, *keys: int) -> int:
    """Return a seed for torch's own generator."""
    return int(np.random.SeedSequence((seed, stream, *keys)).generate_state(1, np.uint64)[0] >> np.uint64(1))
