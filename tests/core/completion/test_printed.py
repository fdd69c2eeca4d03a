"""Eq. 5 and 6 as printed."""

from __future__ import annotations

import torch

from federations import update
from fedlga.core.completion.printed import printed_scale


def test_printed_is_equations_5_and_6_with_the_matrix_written_out():
    # The same through the n x n matrix that the paper prints, which our code never makes.
    generator = torch.Generator().manual_seed(1)
    delta, expected = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    u = update(0, delta.tolist(), steps=3, asked=5, lr=0.2)
    g = -delta / (0.2 * 3)
    matrix = torch.outer(g, g)
    by_paper = delta + matrix @ (expected - delta)
    ours = delta * printed_scale(u, expected.float())
    torch.testing.assert_close(by_paper, ours, rtol=1e-4, atol=1e-4)
