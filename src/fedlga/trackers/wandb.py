"""Weights & Biases: online, or with WANDB_MODE=offline into a folder that `wandb sync` sends later."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from fedlga.core.settings import setting
from fedlga.core.tracker import TrackedRun, Tracker, import_package


@final
@dataclass
class WeightsAndBiases(Tracker):
    """A run of Weights & Biases; with mode=offline nothing is sent, and `wandb sync` sends it later."""

    project: str = setting("fedlga", "project that runs belong to")
    mode: str | None = setting(
        None, "online or offline; unset: as WANDB_MODE says", choices=("online", "offline", "disabled")
    )

    def check(self) -> None:  # noqa: D102
        import_package("wandb", "wandb")

    def start(self, run: TrackedRun) -> None:  # noqa: D102
        wandb = import_package("wandb", "wandb")
        self._run = wandb.init(
            project=self.project,
            name=run.name,
            id=hashlib.sha256(str(run.folder.resolve()).encode()).hexdigest()[:16],  # a continued run stays one run
            resume="allow" if run.round else None,
            config=dict(run.settings),
            dir=str(run.folder),
            mode=self.mode,
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True, save_code=False, disable_git=True),
        )

    def log(self, round: int, values: Mapping[str, float]) -> None:  # noqa: D102
        self._run.log(dict(values), step=round)

    def end(self, summary: Mapping[str, Any]) -> None:  # noqa: D102
        plain = {name: value for name, value in summary.items() if isinstance(value, str | int | float | bool)}
        self._run.summary.update(plain)
        self._run.finish(exit_code=0 if summary.get("finished") else 1)
