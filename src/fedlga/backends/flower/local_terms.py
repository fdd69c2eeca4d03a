"""For a Flower client of one's own: what Scaffold and FedDyn add to its gradients, and what it then sends along.

terms = LocalTerms(msg, context, model, lr=0.01)   # after the weights that came were loaded into the model
for images, labels in batches:
    optimizer.zero_grad()
    loss(model(images), labels).backward()
    terms.add_to_gradients()
    optimizer.step()
content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics, **terms.uploads(steps)})

With a method that needs none of this (FedLGA, FedNova, FedAvg) the same lines do nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message

from ..methods import make_method
from ..types import Local, Task
from .device import home_of
from .messages import packed, unpacked

if TYPE_CHECKING:
    from ..types import Vector

METHOD, SENT, UPLOADED, COUNTED = "fedlga-method", "fedlga-sent", "fedlga-uploaded", "fedlga-counted"


class LocalTerms:
    """The terms of the method that the strategy names, on this device. Its memory stays here, on disk."""

    def __init__(
        self, message: Message, context: Context, model: torch.nn.Module, *, lr: float, momentum: float = 0.0
    ) -> None:
        """`model` holds the weights that came; `lr` and `momentum` are those of the optimiser."""
        self._model = model
        config = _config(message)
        name, options = str(config.get(METHOD, "fedavg")), json.loads(str(config.get(f"{METHOD}-options", "{}")))
        self._method = make_method(name, options)
        arrays = next(record for key, record in message.content.array_records.items() if key != SENT)
        self._names = [key for key, array in arrays.items() if array.dtype.startswith("float")]
        sent = message.content.array_records.get(SENT)
        self._round = int(str(config.get("server-round", 0)))
        self._task = Task(
            round=self._round,
            device=0,
            w=self._flat(),
            steps=0,
            steps_asked=0,
            lr=lr,
            momentum=momentum,
            seed=0,
            shared={} if sent is None else unpacked(sent),
        )
        self._home = home_of(context, f"run{context.run_id}", int(str(config.get(COUNTED, -1))))
        self._memory = self._home.recall()
        self._local = self._method.local(self._task, self._memory)

    def _flat(self) -> Vector:
        state = self._model.state_dict()
        return torch.cat([state[name].detach().float().reshape(-1).cpu() for name in self._names])

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        """After `backward`, before the optimiser's step."""
        if self._local == Local():
            return
        parameters = dict(self._model.named_parameters())
        for name, sent, constant in self._pieces(parameters):
            gradient = parameters[name].grad
            if gradient is None:
                continue
            if constant is not None:
                gradient.add_(constant.view_as(gradient).to(gradient.device))
            if self._local.pull:
                moved = parameters[name] - sent.view_as(gradient).to(gradient.device)
                gradient.add_(moved, alpha=self._local.pull)

    def _pieces(self, parameters: dict[str, torch.nn.Parameter]) -> Sequence[tuple[str, Vector, Vector | None]]:
        """Every parameter with its part of the weights sent and of the constant."""
        state, start = self._model.state_dict(), 0
        found: list[tuple[str, Vector, Vector | None]] = []
        for name in self._names:
            end = start + state[name].numel()
            if name in parameters:
                constant = None if self._local.constant is None else self._local.constant[start:end]
                found.append((name, self._task.w[start:end], constant))
            start = end
        return found

    def uploads(self, steps: int) -> dict[str, ArrayRecord]:
        """After the last step: what to send besides the weights. What the device remembers is written here."""
        if not steps:
            zeros = {name: torch.zeros_like(self._task.w) for name in self._method.uploads}
            return {UPLOADED: packed(zeros)} if zeros else {}
        delta = self._flat() - self._task.w
        upload, memory = self._method.finish(self._task, delta, steps, self._memory)
        if memory:
            self._home.remember(self._round, memory)
        return {UPLOADED: packed(upload)} if upload else {}


def _config(message: Message) -> ConfigRecord:
    records = list(message.content.config_records.values())
    return records[0] if records else ConfigRecord()
