"""The weighted mean: the same bits whether vectors are held or added one after the other as they arrive."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.aggregation import mean
from fedlga.core.aggregation.mean import Mean, mean_of
from fedlga.core.method import WeightedVector


def vectors_of(size: int, coefficients: list[float], seed: int = 0) -> list[WeightedVector]:
    generator = torch.Generator().manual_seed(seed)
    vectors = [torch.randn(size, generator=generator) for _ in coefficients]
    return [WeightedVector(v, abs(c) + 0.5, c) for v, c in zip(vectors, coefficients, strict=True)]


def add_one_by_one(vectors: list[WeightedVector], start: torch.Tensor | None) -> torch.Tensor:
    """Do what the aggregator does with updates as they arrive."""
    first, *rest = vectors
    total = first.vector * first.coefficient if start is None else start.add(first.vector, alpha=first.coefficient)
    for v in rest:
        total.add_(v.vector, alpha=v.coefficient)
    return total


@given(
    size=st.one_of(st.integers(1, 200), st.integers(4000, 4200), st.integers(1, 20_000)),
    coefficients=st.lists(st.floats(-1e3, 1e3, width=32) | st.floats(0.001, 10), min_size=1, max_size=9),
    seed=st.integers(0, 99),
    has_start=st.booleans(),
)
def test_a_sum_has_the_bits_of_adding_one_by_one(size, coefficients, seed, has_start):
    vectors = vectors_of(size, coefficients, seed)
    start = torch.randn(size, generator=torch.Generator().manual_seed(seed + 1000)) if has_start else None
    before = None if start is None else start.clone()
    copies = [v.vector.clone() for v in vectors]
    total = Mean().sum(vectors, start)
    assert torch.equal(total, add_one_by_one(vectors, start))
    assert start is None or torch.equal(start, before), "the start is not changed"
    assert all(torch.equal(v.vector, copy) for v, copy in zip(vectors, copies, strict=True))


@pytest.mark.parametrize("has_start", [False, True])
@pytest.mark.parametrize("count", [3, 70_000, 5_000_003])
def test_a_large_sum_has_the_bits_of_adding_one_by_one(count, has_start):
    """Large vectors are divided between threads, or summed in blocks if there is no compiler."""
    vectors = vectors_of(count, [(1.7 + d) * (1 + 0.3 * d) for d in range(7)], seed=1)
    start = torch.linspace(-1, 1, count) if has_start else None
    assert torch.equal(Mean().sum(vectors, start), add_one_by_one(vectors, start))


@pytest.mark.parametrize("count", [3, 70_000, 5_000_003])
def test_without_a_compiler_the_bits_are_the_same(count, monkeypatch):
    vectors = vectors_of(count, [1.7, 0.3, -2.5, 4.0], seed=2)
    monkeypatch.setattr(mean, "weighted_sum", lambda *_: None)
    assert torch.equal(Mean().sum(vectors), add_one_by_one(vectors, None))


def test_the_mean_divides_by_the_weights_and_not_by_the_coefficients():
    # A weighs 1 and is scaled by 3, B weighs 3: (3 * 1 * (2, 0) + 3 * (0, 4)) / 4
    two = [WeightedVector(torch.tensor([2.0, 0.0]), 1.0, 3.0), WeightedVector(torch.tensor([0.0, 4.0]), 3.0, 3.0)]
    assert mean_of(two).tolist() == [1.5, 3.0]
