"""The aggregator's compiled sums: what torch gives, the same bits with any number of threads."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.core.kernels import updates
from fedlga.core.kernels.updates import sum_with_signs, weighted_sum


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 10_000), count=st.integers(1, 9), seed=st.integers(0, 9))
def test_a_compiled_sum_is_that_of_torch(size, count, seed):
    generator = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(size, generator=generator) for _ in range(count)]
    coefficients = [0.5 + k for k in range(count)]
    total = weighted_sum(vectors, coefficients)
    assert total is not None, "there is no compiler here"
    mean = total / sum(coefficients)
    wanted = sum(c * v.double() for c, v in zip(coefficients, vectors, strict=True)) / sum(coefficients)
    torch.testing.assert_close(mean, wanted.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 4095, 4096, 20_000, 3 * 4096])
def test_threads_change_no_bit_of_a_sum(size, monkeypatch):
    vectors = [torch.randn(size) for _ in range(7)]
    coefficients = [0.5 + k for k in range(7)]
    monkeypatch.setattr(updates, "WORTH_A_THREAD", 1)
    totals: list[torch.Tensor | None] = []
    for cores in (1, 2, 3, 4):
        monkeypatch.setattr(updates, "CORES", cores)
        totals.append(weighted_sum(vectors, coefficients))
    assert totals[0] is not None
    assert all(other is not None and torch.equal(totals[0], other) for other in totals)


def test_vectors_that_it_cannot_read_are_left_to_torch():
    assert weighted_sum([torch.zeros(10)[::2]], [1.0]) is None
    assert weighted_sum([torch.zeros(3), torch.zeros(4)], [1.0, 1.0]) is None
    assert weighted_sum([torch.zeros(3, dtype=torch.float64)], [1.0]) is None
    signs, sums = torch.ones(2), torch.zeros(4096)
    assert sum_with_signs(torch.zeros(2, 100), signs, sums) is None
    assert sum_with_signs(torch.zeros(2, 4096, dtype=torch.float64), signs, sums) is None
    assert sum_with_signs(torch.zeros(4096, 2).t(), signs, sums) is None
