"""Digests of updates: lengths and sketches, read whole, in blocks, by threads and by compiled code."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.core.completion import digest
from fedlga.core.completion.digest import SKETCH, summarise, summarise_all


def test_sketches_keep_inner_products():
    rng = np.random.default_rng(1)
    a, noise = (torch.from_numpy(rng.standard_normal(50_003).astype(np.float32)) for _ in range(2))
    for mix in (0.0, 0.5, 0.9, 1.0):
        b = mix * a + (1 - mix) * noise
        exact = float(torch.dot(a, b) / (a.norm() * b.norm()))
        sketched = float(torch.dot(summarise(a).direction, summarise(b).direction))
        assert len(summarise(a).sketch) == SKETCH
        assert sketched == pytest.approx(exact, abs=4 / math.sqrt(SKETCH))
    short = torch.arange(5.0)
    assert torch.equal(summarise(short).sketch, short)


@pytest.mark.parametrize("count", [1, 4096, 4097, 4_194_304, 5_000_003])
def test_reading_in_blocks_gives_what_reading_the_whole_gives(count):
    delta = torch.linspace(-1, 1, count)
    assert summarise(delta).length == pytest.approx(float(delta.double().norm()), rel=1e-4)
    assert summarise(delta, sketch=False).sketch is None
    rows = -(-count // SKETCH)
    signs = torch.from_numpy(np.random.default_rng(count // SKETCH).choice(np.array([-1.0, 1.0], np.float32), rows))
    if count > SKETCH:
        padded = torch.zeros(rows * SKETCH)
        padded[:count] = delta
        torch.testing.assert_close(summarise(delta).sketch, signs @ padded.view(rows, SKETCH), rtol=1e-4, atol=1e-4)


def test_updates_read_in_parallel_have_the_same_digests(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    deltas = [(device, torch.randn(50_000, generator=generator)) for device in range(9)]
    alone = summarise_all(iter(deltas), sketches=True)
    monkeypatch.setattr(digest, "LARGE", 1)
    parallel = summarise_all(iter(deltas), sketches=True)
    assert list(alone) == list(parallel) == list(range(9))
    assert {d: found.length for d, found in alone.items()} == {d: found.length for d, found in parallel.items()}
    for device, found in alone.items():
        assert found.sketch is not None
        assert torch.equal(found.sketch, cast("torch.Tensor", parallel[device].sketch))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(4097, 60_000), seed=st.integers(0, 9))
def test_a_compiled_digest_is_that_of_torch(size, seed):
    delta = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    compiled = summarise(delta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest, "sum_with_signs", lambda *_: None)
        plain = summarise(delta)
    assert compiled.length == pytest.approx(plain.length, rel=1e-5)
    torch.testing.assert_close(compiled.sketch, plain.sketch, rtol=1e-4, atol=1e-4)
