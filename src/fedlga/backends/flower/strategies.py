"""Flower strategies, to be put in the place of Flower's FedAvg: FedLGA, FedNova, Scaffold, FedDyn.

from fedlga.flower import FedLGA
strategy = FedLGA(fraction_train=0.5)

A client says how many steps it did: "num-steps" among its metrics, beside Flower's "num-examples". If it was asked for
more than it did, it says so with "num-steps-asked"; without, `steps`, or the most that anyone did in the round, counts
as the full work. Scaffold and FedDyn change the local training too: see LocalTerms.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from dataclasses import asdict, replace
from logging import INFO, WARNING
from statistics import median_low
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore import log

from ..methods import make_method
from ..settings import BadInput
from ..stragglers import make_policy
from ..types import Server, Update
from .messages import MOST_EXAMPLES, Refused, checked_array, checked_vectors, packed
from .terms import COUNTED, METHOD, SENT, UPLOADED

if TYPE_CHECKING:
    from ..types import Vector

STEPS, ASKED, DEADLINE = "num-steps", "num-steps-asked", "deadline"
MOST_TIMES = 100  # times the full work of the client in the middle: more, where nobody knows better, is no work


class Unequal(FedAvg):
    """What the strategies have in common: a fedlga method and its answer to stragglers, on Flower's messages."""

    method_name = "fedavg"

    def __init__(
        self,
        *,
        stragglers: str | None = None,
        steps: int | None = None,
        deadline: float | None = None,
        devices: int | None = None,
        lr: float = 0.0,
        momentum: float = 0.0,
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        **flower: Any,
    ) -> None:
        """`flower` are the arguments of Flower's FedAvg.

        stragglers: wait, drop, keep or complete; the method's own if unset.
        steps: the full work, where clients do not say what they were asked for; nobody can have done more.
        deadline: seconds, told to the clients as "deadline" in their configuration; it is for them to keep.
        devices: N, of which each update's share is 1/N (Scaffold, FedDyn); unset: the nodes that are connected.
        lr, momentum: of the clients' SGD, where the method's formula has them (FedNova).
        seed: makes the choice of nodes repeatable, for the same nodes. options: the method's and policy's settings.
        """
        super().__init__(**flower)
        own = dict(options or {})
        kind = type(make_method(self.method_name, {}))
        self._policy_name = stragglers or kind.policies[0]
        if self._policy_name not in kind.policies:
            raise BadInput(f"stragglers: got {stragglers!r}; {self.method_name} takes {', '.join(kind.policies)}")
        names = set(vars(make_policy(self._policy_name, {})))
        chosen = {name: own.pop(name) for name in list(own) if name in names}
        self._method, self._policy = make_method(self.method_name, own), make_policy(self._policy_name, chosen)
        self._steps, self._deadline, self._devices = steps, deadline, devices
        self._lr, self._momentum, self._seed = lr, momentum, seed
        self._server: Server | None = None
        self._layout: list[tuple[str, tuple[int, ...], str]] = []
        self._arrays = ArrayRecord()
        self._numbers: dict[int, int] = {}  # node -> a small number, in the order of their first answers
        self._connected = 1
        self._counted: dict[int, int] = {}  # node -> the last round that its update counted in
        if self._lr == 0 and (getattr(self._method, "mu", 0) or getattr(self._policy, "scale", None) == "printed"):
            raise BadInput("lr: got 0; FedNova with mu, and scale 'printed', take the clients' learning rate")

    def summary(self) -> None:
        """Log what is done with unfinished work, besides what Flower logs."""
        super().summary()
        log(INFO, "\t└──> %s, unfinished work: %s", type(self).__name__, self._policy_name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to the nodes of this round; the weights are remembered, to see how far each client moved them."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        nodes = sorted(grid.get_node_ids())
        self._connected = len(nodes)
        self._remember(arrays, server_round)
        assert self._server is not None
        config[METHOD] = self.method_name
        config[f"{METHOD}-options"] = json.dumps(asdict(self._method))
        if self._deadline is not None:
            config[DEADLINE] = self._deadline
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        shared = {name: self._server.memory[name] for name in self._method.sends if name in self._server.memory}
        if shared:
            record[SENT] = packed(shared)
        chosen = [message.metadata.dst_node_id for message in messages]
        if self._seed is not None:
            chosen = random.Random(f"{self._seed} {server_round}").sample(nodes, min(len(nodes), len(messages)))
        return [Message(self._to(node, record), node, MessageType.TRAIN) for node in chosen]

    def _to(self, node: int, record: RecordDict) -> RecordDict:
        """The same for everybody, but for the round whose update counted last: which memory the device goes on from."""
        config = ConfigRecord({**record.config_records[self.configrecord_key], COUNTED: self._counted.get(node, -1)})
        return RecordDict({**record, self.configrecord_key: config})

    def _remember(self, arrays: ArrayRecord, round: int) -> None:
        floats = {name: array for name, array in arrays.items() if array.dtype.startswith("float")}
        self._layout = [(name, tuple(array.shape), array.dtype) for name, array in floats.items()]
        self._arrays = arrays
        before = self._server or Server(round=0, w=torch.empty(0))
        self._server = replace(before, round=round - 1, w=_flat(floats))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The next weights, from what the clients sent; what cannot be believed is left out, and said."""
        valid, _ = self._check_and_log_replies(list(replies), is_train=True, validate=False)
        if self._server is None:  # nobody was asked for anything
            return None, None
        most = MOST_TIMES * median_low([full for reply in valid if (full := _full_work(reply))] or [0])
        updates, contents, nodes = list[Update](), list[RecordDict](), list[int]()
        for reply in valid:
            try:
                update = self._update(reply)
                if not self._steps and (claimed := max(update.steps, update.steps_asked)) > most:
                    raise Refused(f"it claims {claimed} steps, {MOST_TIMES} times what is usual")
            except Refused as refused:
                log(WARNING, "aggregate_train: left out node %d: %s", reply.metadata.src_node_id, refused)
                continue
            updates.append(update)
            contents.append(reply.content)
            nodes.append(reply.metadata.src_node_id)
        full = self._steps or max((max(u.steps, u.steps_asked) for u in updates), default=0)
        # Who said nothing of what it was asked for was asked for the full work, as far as anybody knows.
        updates = [u if u.steps_asked else replace(u, steps_asked=max(full, u.steps)) for u in updates]
        answer = self._policy.answer(self._server, updates)
        used = list(answer.updates)
        if not used:
            return None, None
        self._counted |= {node: server_round for node in nodes if self._numbers[node] in {u.device for u in used}}
        server = replace(self._server, memory={**self._server.memory, **(answer.memory or {})})
        self._server = self._method.aggregate(server, used)
        completed = {u.device: round(u.scale, 3) for u in used if u.scale != 1}
        if completed:
            log(INFO, "aggregate_train: completed %d of %d updates", len(completed), len(used))
        metrics = self.train_metrics_aggr_fn(_alike(contents), self.weighted_by_key)
        metrics["completed"] = len(completed)
        return self._packed(self._server.w), metrics

    def _update(self, reply: Message) -> Update:
        assert self._server is not None
        content, w = reply.content, self._server.w
        numbers = [dict(record) for record in content.metric_records.values()]
        if len(numbers) != 1:
            raise Refused("it sent no metrics, or more than one record of them")
        steps, examples = _count(numbers[0], STEPS), _count(numbers[0], self.weighted_by_key)
        asked = _count(numbers[0], ASKED) if ASKED in numbers[0] else 0  # 0: it does not say
        if steps == 0:
            raise Refused("it did not get to a single step")
        if not 1 <= examples <= MOST_EXAMPLES:
            raise Refused(f"it says {self.weighted_by_key} {examples}")
        most = min(filter(None, (asked, self._steps)), default=steps)
        if steps > most:
            raise Refused(f"it claims {steps} steps, and was asked for {most}")
        uploaded = content.array_records.get(UPLOADED)
        if self._method.uploads and uploaded is None:
            raise Refused(f"it sent no {', '.join(self._method.uploads)}: {self.method_name} needs LocalTerms")
        extra = checked_vectors(uploaded, list(self._method.uploads), len(w)) if self._method.uploads else {}
        returned = [record for key, record in content.array_records.items() if key != UPLOADED]
        if len(returned) != 1:
            raise Refused(f"it sent {len(returned)} records of weights")
        node = reply.metadata.src_node_id
        return Update(
            device=self._numbers.setdefault(node, len(self._numbers)),
            delta=self._weights(returned[0]).sub_(w),
            examples=examples,
            steps=steps,
            steps_asked=asked,
            train_loss=math.nan,
            extra=extra,
            lr=self._lr,
            momentum=self._momentum,
            weight=float(examples),
            share=1 / (self._devices or self._connected),
        )

    def _weights(self, record: ArrayRecord) -> Vector:
        """The weights of a reply as one vector, if they are the model's, and numbers."""
        for name, shape, dtype in self._layout:
            array = record.get(name)
            if array is None:
                raise Refused(f"it sent no {name}")
            if tuple(array.shape) != shape or array.dtype != dtype:
                raise Refused(f"{name} is {tuple(array.shape)} of {array.dtype}, and the model's {shape} of {dtype}")
        pieces = [checked_array(name, record[name]) for name, _, _ in self._layout]
        return torch.from_numpy(np.concatenate([piece.astype(np.float32).reshape(-1) for piece in pieces]))

    def _packed(self, w: Vector) -> ArrayRecord:
        """The vector as the arrays it came from; what is not of floating point stays as it was sent."""
        found, start = dict[str, Array](self._arrays.items()), 0
        for name, shape, dtype in self._layout:
            end = start + math.prod(shape)
            found[name] = Array(w[start:end].numpy().reshape(shape).astype(dtype))
            start = end
        return ArrayRecord(found)


class FedLGA(Unequal):
    """Averaging in which the unfinished updates of slow devices are completed first."""

    method_name = "fedlga"


class FedNova(Unequal):
    """Each update counts per step it took."""

    method_name = "fednova"


class Scaffold(Unequal):
    """Each device corrects its gradients by how its own mean gradient differs from everyone's; needs LocalTerms."""

    method_name = "scaffold"


class FedDyn(Unequal):
    """Each device's loss is bent so that its own optimum and everyone's become the same point; needs LocalTerms."""

    method_name = "feddyn"


def _count(numbers: dict[str, Any], name: str) -> int:
    value = numbers.get(name)
    if value is None:
        raise Refused(f"its metrics have no {name}")
    if isinstance(value, list) or not math.isfinite(value) or value < 0 or value != int(value):
        raise Refused(f"it says {name} {value}")
    return int(value)


def _full_work(reply: Message) -> float | None:
    """What a client says it was asked for, or else what it did, if that is a number."""
    said = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
    value = said.get(ASKED, said.get(STEPS))
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _alike(contents: list[RecordDict]) -> list[RecordDict]:
    """The replies with the metrics that all of them have, in one form: no others can be averaged."""
    named = [next(iter(content.metric_records.items())) for content in contents]
    forms = [{k: len(v) if isinstance(v, list) else None for k, v in numbers.items()} for _, numbers in named]
    common = [k for k, form in forms[0].items() if all(k in other and other[k] == form for other in forms)]
    return [
        RecordDict({**content, key: MetricRecord({k: numbers[k] for k in common})})
        for content, (key, numbers) in zip(contents, named, strict=True)
    ]


def _flat(arrays: dict[str, Array]) -> Vector:
    return torch.from_numpy(np.concatenate([array.numpy().astype(np.float32).reshape(-1) for array in arrays.values()]))
