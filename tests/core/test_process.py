"""One thread inside a `with`, and the number of before after it."""

from __future__ import annotations

import pytest
import torch

from fedlga.core.process import one_thread


@pytest.mark.parametrize("fails", [False, True])
def test_one_thread_inside_and_as_before_after(fails):
    outside = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        try:
            with one_thread():
                assert torch.get_num_threads() == 1
                if fails:
                    raise KeyError
        except KeyError:
            assert fails
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(outside)
