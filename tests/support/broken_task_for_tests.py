"""Broken: every call of `data` gives other points, so no run can be repeated."""

from __future__ import annotations

import numpy as np

from task_for_tests import experiment, model

__all__ = ["data", "experiment", "model"]


def data():
    y = np.arange(120) % 2
    return np.random.default_rng().standard_normal((120, 2)) + 3 * y[:, None], y
