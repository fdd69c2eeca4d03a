"""All methods get the same draws."""

from __future__ import annotations

import by_hand
from fedlga.core.randomness import Stream, generator, torch_seed


def test_every_method_gets_the_same_devices_stragglers_batches_and_starting_weights():
    by_hand.check_that_draws_are_the_same_for_every_method()


def test_purposes_rounds_and_devices_have_draws_of_their_own():
    keys = [(0, Stream.SAMPLE, 1), (1, Stream.SAMPLE, 1), (0, Stream.FLEET, 1), (0, Stream.SAMPLE, 2)]
    keys += [(0, Stream.BATCHES, 1, 2), (0, Stream.BATCHES, 2, 1)]
    draws = [generator(*key).random() for key in keys]
    assert len(set(draws)) == len(keys)
    assert draws == [generator(*key).random() for key in keys]
    seeds = [torch_seed(*key) for key in keys]
    assert len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_numbers_of_streams_never_change():
    """They are part of every result; new ones are appended."""
    names = ["PARTITION", "WEIGHTS", "SAMPLE", "FLEET", "SPEEDS", "DROPOUT", "BATCHES", "LAYERS"]
    assert [(s.name, s.value) for s in Stream][: len(names)] == [(name, i) for i, name in enumerate(names, start=1)]
