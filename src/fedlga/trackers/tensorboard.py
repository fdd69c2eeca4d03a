"""TensorBoard: `tensorboard --logdir runs` shows all runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from fedlga.core.settings import BadInput, setting
from fedlga.core.tracker import TrackedRun, Tracker, import_package


@final
@dataclass
class TensorBoard(Tracker):
    """Event files of TensorBoard, in the run folder; `tensorboard --logdir runs` shows them."""

    subfolder: str = setting("tensorboard", "folder of the event files, in the run folder")

    def check(self) -> None:  # noqa: D102
        name = self.subfolder
        if Path(name).name != name or name in ("", "..") or name.startswith("checkpoint"):  # those are the run's
            raise BadInput(f"tensorboard.subfolder: got {name!r}; it takes the name of a folder in the run folder")
        import_package("tensorboard", "tensorboard")

    def start(self, run: TrackedRun) -> None:  # noqa: D102
        writer = import_package("torch.utils.tensorboard", "tensorboard").SummaryWriter
        after = run.round + 1 if run.round else None  # what was tracked of later rounds is not shown
        self._writer = writer(str(run.folder / self.subfolder), purge_step=after)
        text = "\n".join(f"    {name} = {value}" for name, value in run.settings.items())
        self._writer.add_text("experiment", text, run.round)

    def log(self, round: int, values: Mapping[str, float]) -> None:  # noqa: D102
        for name, value in values.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, summary: Mapping[str, Any]) -> None:  # noqa: D102
        self._writer.close()
