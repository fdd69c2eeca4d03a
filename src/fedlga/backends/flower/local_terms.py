"""For your own Flower client: what Scaffold and FedDyn add to its gradients, and what it then sends along.

terms = LocalTerms(msg, context, model, lr=0.01)   # after the received weights were loaded into the model
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

from fedlga.backends.flower.messages import pack_vectors, unpack_vectors
from fedlga.backends.flower.node_memory import own_memory_file
from fedlga.core.method import Method
from fedlga.core.registry import create
from fedlga.core.types import Assignment
from fedlga.learning.training import add_local_terms

if TYPE_CHECKING:
    from fedlga.core.types import Vector

METHOD, SENT, UPLOADED, COUNTED = "fedlga-method", "fedlga-sent", "fedlga-uploaded", "fedlga-counted"


class LocalTerms:
    """The terms of the method that the strategy names. The device's memory stays on its disk."""

    def __init__(
        self, message: Message, context: Context, model: torch.nn.Module, *, lr: float, momentum: float = 0.0
    ) -> None:
        """`model` holds the received weights; `lr` and `momentum` are those of the optimiser."""
        self._model = model
        config = _config(message)
        name, options = str(config.get(METHOD, "fedavg")), json.loads(str(config.get(f"{METHOD}-options", "{}")))
        self._method: Method = create("method", name, options)
        arrays = next(record for key, record in message.content.array_records.items() if key != SENT)
        self._names = [key for key, array in arrays.items() if array.dtype.startswith("float")]
        sent = message.content.array_records.get(SENT)
        self._round = int(str(config.get("server-round", 0)))
        self._assignment = Assignment(
            round=self._round,
            device=0,
            w=self._flat(),
            steps=0,
            steps_asked=0,
            lr=lr,
            momentum=momentum,
            seed=0,
            broadcast={} if sent is None else unpack_vectors(sent),
        )
        self._file = own_memory_file(context, f"run{context.run_id}", int(str(config.get(COUNTED, -1))))
        self._memory = self._file.read()
        self._local = self._method.local(self._assignment, self._memory)

    def _flat(self) -> Vector:
        state = self._model.state_dict()
        return torch.cat([state[name].detach().float().reshape(-1).cpu() for name in self._names])

    @torch.no_grad()
    def add_to_gradients(self) -> None:
        """Add the method's terms: after `backward`, before the optimiser's step."""
        if self._local.constant is None and not self._local.pull:
            return
        parameters = dict(self._model.named_parameters())
        for name, sent, constant in self._pieces(parameters):
            parameter = parameters[name]
            if parameter.grad is not None:
                like = parameter.grad
                piece = None if constant is None else constant.view_as(like).to(like.device)
                add_local_terms(like, piece, self._local.pull, parameter, sent.view_as(like).to(like.device))

    def _pieces(self, parameters: dict[str, torch.nn.Parameter]) -> Sequence[tuple[str, Vector, Vector | None]]:
        """Return every parameter's name with its part of the weights sent and of the constant."""
        state, start = self._model.state_dict(), 0
        pieces: list[tuple[str, Vector, Vector | None]] = []
        for name in self._names:
            end = start + state[name].numel()
            if name in parameters:
                constant = None if self._local.constant is None else self._local.constant[start:end]
                pieces.append((name, self._assignment.w[start:end], constant))
            start = end
        return pieces

    def uploads(self, steps: int) -> dict[str, ArrayRecord]:
        """Return what to send besides the weights, after the last step, and store what the device remembers."""
        if not steps:
            zeros = {name: torch.zeros_like(self._assignment.w) for name in self._method.uploads}
            return {UPLOADED: pack_vectors(zeros)} if zeros else {}
        delta = self._flat() - self._assignment.w
        upload, memory = self._method.finish(self._assignment, delta, steps, self._memory)
        if memory:
            self._file.write(self._round, memory, keep_counted=True)
        return {UPLOADED: pack_vectors(upload)} if upload else {}


def _config(message: Message) -> ConfigRecord:
    records = list(message.content.config_records.values())
    return records[0] if records else ConfigRecord()
