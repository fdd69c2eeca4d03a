"""MLflow: where MLFLOW_TRACKING_URI says, or as MLflow itself does without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from fedlga.core.files import write_atomically
from fedlga.core.settings import setting
from fedlga.core.tracker import TrackedRun, Tracker, import_package

RUN_ID = "mlflow-run-id"  # in the run folder: a run that is continued stays one run of MLflow


@final
@dataclass
class MLflow(Tracker):
    """A run of MLflow, on the server that MLFLOW_TRACKING_URI names; without it, where MLflow keeps its own."""

    experiment: str = setting("fedlga", "MLflow's experiment that runs belong to")
    uri: str = setting("", "tracking URI, such as http://localhost:5000; empty: MLflow's own rules")

    def check(self) -> None:  # noqa: D102
        import_package("mlflow", "mlflow")

    def start(self, run: TrackedRun) -> None:  # noqa: D102
        self._client = import_package("mlflow", "mlflow").MlflowClient(self.uri or None)
        file = run.folder / RUN_ID
        if run.round and file.exists():
            self._run = file.read_text(encoding="utf-8").strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        self._run = self._client.create_run(self._find_experiment(), run_name=run.name).info.run_id
        write_atomically(file, f"{self._run}\n")
        for name, value in run.settings.items():
            self._client.log_param(self._run, name, value)

    def _find_experiment(self) -> str:
        """Return the number of MLflow's experiment, which is created if it is not there."""
        known = self._client.get_experiment_by_name(self.experiment)
        if known is None:
            try:
                return str(self._client.create_experiment(self.experiment))
            except Exception:
                known = self._client.get_experiment_by_name(self.experiment)
                if known is None:
                    raise  # else another process created it a moment ago
        return str(known.experiment_id)

    def log(self, round: int, values: Mapping[str, float]) -> None:  # noqa: D102
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=round)

    def end(self, summary: Mapping[str, Any]) -> None:  # noqa: D102
        over = summary.get("finished") and not summary.get("diverged")
        self._client.set_terminated(
            self._run, "FINISHED" if over else "FAILED" if summary.get("diverged") else "KILLED"
        )
