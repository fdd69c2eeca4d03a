"""The pool: errors in a worker reach the caller, and closing removes everything."""

from __future__ import annotations

import pytest

from fedlga.backends.pool.workers import Workers
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate

pytestmark = pytest.mark.slow


def test_a_model_that_fails_in_a_worker_says_why():
    experiment = preset("digits").changed({"backend": "pool", "model": "models_for_tests:fails_in_training"})
    with (
        pytest.raises(BadInput, match=r"^model\(\) failed for inputs .*this model does not want to be trained"),
        simulate(experiment) as simulation,
    ):
        list(run_rounds(simulation.federation, simulation.start, 1))


def test_a_bad_model_is_bad_input():
    with (
        pytest.raises(BadInput, match="scores 9 classes, and the dataset has 10"),
        simulate(preset("digits").changed({"backend": "pool", "model": "models_for_tests:too_few_scores"})),
    ):
        pass


def test_closing_leaves_no_files_and_no_processes(monkeypatch, tmp_path):
    monkeypatch.setattr("fedlga.backends.shared._memory_files", lambda: str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    workers = Workers(2)
    processes = list(workers._processes)
    with simulate(preset("digits").changed({"backend": "pool"}), workers=workers) as simulation:
        next(run_rounds(simulation.federation, simulation.start, 1))
        assert any(tmp_path.iterdir())
    workers.close()
    assert not any(tmp_path.iterdir())
    assert all(process.poll() is not None for process in processes)
