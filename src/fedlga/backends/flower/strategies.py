"""Flower strategies that replace Flower's FedAvg: FedLGA, FedNova, Scaffold, FedDyn.

from fedlga.flower import FedLGA
strategy = FedLGA(fraction_train=0.5)

A client reports how many steps it did: "num-steps" among its metrics, beside Flower's "num-examples". Unfinished is
what a client shows to be unfinished, by "num-steps-asked" or as `client_report.py` says: clients that train whole
epochs over unequal data do different numbers of steps, and are all finished. Scaffold and FedDyn change the local
training too: see LocalTerms.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from statistics import median_low
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedlga.backends.flower.careful_grid import CarefulGrid
from fedlga.backends.flower.client_report import (
    WHAT_TO_REPORT,
    NoSteps,
    Work,
    find_full_work,
    read_count,
    read_work,
)
from fedlga.backends.flower.evaluations import keep_common_metrics, read_evaluation
from fedlga.backends.flower.flower_private import (
    find_codes_of_absent_nodes,
    find_logger,
    take_replies_without_errors,
)
from fedlga.backends.flower.local_terms import COUNTED, METHOD, SENT, UPLOADED
from fedlga.backends.flower.messages import (
    LONGEST_HEADER,
    MOST_EXAMPLES,
    Refused,
    check_array,
    check_vectors,
    pack_vectors,
    reading_a_reply,
)
from fedlga.backends.flower.ray import NodesFailed
from fedlga.core.aggregator import Aggregator
from fedlga.core.quarantine import find_resting, judge
from fedlga.core.registry import create, find
from fedlga.core.round import all_finite
from fedlga.core.settings import BadInput, settings_of
from fedlga.core.types import Contribution, ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.types import Vector

DEADLINE = "deadline"
MOST_TIMES = 100  # a client that claims more than this times the median full work is refused, unless `steps` is given
NOT_THERE = find_codes_of_absent_nodes()
log = find_logger()


class Unequal(FedAvg):
    """What the strategies have in common: a fedlga method and its policy for stragglers, on Flower's messages."""

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
        aggregation: str = "mean",
        server_optimizer: str = "sgd",
        seed: int | None = None,
        options: dict[str, Any] | None = None,
        **flower: Any,
    ) -> None:
        """`flower` are the arguments of Flower's FedAvg.

        stragglers: wait, drop, keep or complete; the method's own if unset.
        steps: the full work, if every client is asked for the same; no client can have done more.
        deadline: seconds, sent to the clients as "deadline" in their configuration; they have to keep it.
        devices: N: each update's share is 1/N (Scaffold, FedDyn); unset: the number of connected nodes.
        lr, momentum: of the clients' SGD, if the method's formula needs them (FedNova).
        aggregation, server_optimizer: as in an experiment: see `fedlga list aggregations` and `... optimizers`.
        seed: makes the choice of nodes repeatable, for the same nodes.
        options: the settings of the method, policy, aggregation rule and server optimiser, by their names.
        """
        super().__init__(**flower)
        method = find("method", self.method_name)
        self._policy_name = stragglers or method.default_policy
        if method.policies and self._policy_name not in method.policies:
            raise BadInput(f"stragglers: got {stragglers!r}; {self.method_name} takes {', '.join(method.policies)}")
        names = {"method": self.method_name, "policy": self._policy_name}
        names |= {"aggregation": aggregation, "optimizer": server_optimizer}
        self._aggregator = Aggregator(*(create(kind, name, chosen) for kind, name, chosen in _divide(names, options)))
        self._method = self._aggregator.method
        self._steps, self._deadline, self._devices = steps, deadline, devices
        self._lr, self._momentum, self._seed = lr, momentum, seed
        self._state: ServerState | None = None
        self._layout: list[tuple[str, tuple[int, ...], str]] = []
        self._arrays = ArrayRecord()
        self._numbers: dict[int, int] = {}  # node -> a small number, in the order of their first answers
        self._connected = 1
        self._counted: dict[int, int] = {}  # node -> the last round that its update counted in
        self._advised = False  # what clients have to report was logged
        self._asked, self._without_steps = set[int](), set[int]()  # nodes, and those that did not say what they did
        self._with_steps = False  # somebody said it: then the app does, and a few that do not cannot end the run
        policy = self._aggregator.policy
        if self._lr == 0 and (getattr(self._method, "mu", 0) or getattr(policy, "scale", None) == "printed"):
            raise BadInput("lr: got 0; FedNova with mu, and scale 'printed', take the clients' learning rate")

    def summary(self) -> None:
        """Log what is done with unfinished work, after what Flower logs."""
        super().summary()
        log.info("\t└──> %s, unfinished work: %s", type(self).__name__, self._policy_name)

    def start(self, grid: Grid, initial_arrays: ArrayRecord, *arguments: Any, **named: Any) -> Result:
        """Run Flower's loop on a grid that reads each reply on its own."""
        return super().start(self._guard(grid, initial_arrays), initial_arrays, *arguments, **named)

    def _guard(self, grid: Grid, arrays: ArrayRecord) -> Grid:
        numbers = sum(math.prod(array.shape) for array in arrays.values())
        sent = sum(len(array.data) + LONGEST_HEADER for array in arrays.values())
        uploaded = len(self._method.uploads) * (4 * numbers + LONGEST_HEADER)
        return cast("Grid", CarefulGrid(grid, sent + uploaded, len(arrays) + len(self._method.uploads)))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages to the nodes of this round; keep the weights, to see how far each client moves them."""
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if not messages:
            return messages
        nodes = sorted(grid.get_node_ids())
        self._connected = len(nodes)
        self._keep_weights(arrays, server_round)
        assert self._state is not None
        config[METHOD] = self.method_name
        config[f"{METHOD}-options"] = json.dumps(asdict(self._method))
        if self._deadline is not None:
            config[DEADLINE] = self._deadline
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        broadcast = {name: self._state.memory[name] for name in self._method.sends if name in self._state.memory}
        if broadcast:
            record[SENT] = pack_vectors(broadcast)
        chosen = [message.metadata.dst_node_id for message in messages]
        if self._seed is not None:
            chosen = random.Random(f"{self._seed} {server_round}").sample(nodes, min(len(nodes), len(messages)))
        chosen = self._leave_out_resting(chosen)
        self._asked |= set(chosen)
        return [Message(self._record_for(node, record), node, MessageType.TRAIN) for node in chosen]

    def _leave_out_resting(self, nodes: list[int]) -> list[int]:
        """Return the nodes that do not rest; all of them, if all rest: a run must go on."""
        assert self._state is not None
        resting = find_resting(self._state)
        awake = [node for node in nodes if self._numbers.get(node) not in resting]
        if not awake or len(awake) == len(nodes):
            return nodes
        log.info("configure_train: %d nodes rest, because what they sent was refused", len(nodes) - len(awake))
        return awake

    def _judge(self, refused: Iterable[int], used: Iterable[int]) -> None:
        """Remember which nodes' replies were refused, after the round that the state has behind it."""
        assert self._state is not None
        rule, numbers = self._aggregator.rule, {self._number(node) for node in refused}
        strikes = judge(self._state, numbers, used, after=rule.quarantine_after, rounds=rule.quarantine)
        self._state = replace(self._state, memory={**self._state.memory, **strikes})

    def _number(self, node: int) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    def _record_for(self, node: int, record: RecordDict) -> RecordDict:
        """Return the record with the round that the node's update counted in last: its memory continues from there."""
        config = ConfigRecord({**record.config_records[self.configrecord_key], COUNTED: self._counted.get(node, -1)})
        return RecordDict({**record, self.configrecord_key: config})

    def _keep_weights(self, arrays: ArrayRecord, round: int) -> None:
        floats = select_floats(arrays)
        self._layout = [(name, tuple(array.shape), array.dtype) for name, array in floats.items()]
        self._arrays = arrays
        before = self._state or ServerState(round=0, w=torch.empty(0, device="cpu"))
        self._state = replace(before, round=round - 1, w=flatten(floats))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next weights from what the clients sent; a reply that cannot be right is left out and logged."""
        replies = list(replies)
        valid = take_replies_without_errors(self, replies)
        if self._state is None:  # no node was asked for anything
            return None, None
        refused_nodes = {r.metadata.src_node_id for r in replies if r.has_error() and r.error.code not in NOT_THERE}
        most = MOST_TIMES * median_low([full for reply in valid if (full := find_full_work(reply))] or [0])
        updates, works, taken = list[Update](), list[Work](), list[Message]()
        for reply in valid:
            try:
                with reading_a_reply():
                    update, work = self._update(reply)
                if not self._steps and (claimed := max(update.steps, update.steps_asked)) > most:
                    raise Refused(f"it claims {claimed} steps, {MOST_TIMES} times what is usual")
            except Refused as refused:
                refused_nodes.add(reply.metadata.src_node_id)
                if isinstance(refused, NoSteps):
                    self._without_steps.add(reply.metadata.src_node_id)
                log.warning("aggregate_train: left out node %d: %s", reply.metadata.src_node_id, refused)
                continue
            updates.append(update)
            works.append(work)
            taken.append(reply)
        self._with_steps = self._with_steps or bool(updates)
        if not self._with_steps and 2 * len(self._without_steps) > len(self._asked):
            raise NodesFailed(f"no reply of round {server_round} can be used: {WHAT_TO_REPORT}")
        updates = self._find_unfinished(updates, works)
        share = 1 / (self._devices or self._connected)
        contributions = [self._weigh(u, reply, share) for u, reply in zip(updates, taken, strict=True)]
        aggregation = self._aggregator.aggregate(replace(self._state, round=server_round), contributions)
        for update, reply in zip(updates, taken, strict=True):
            if (why := aggregation.refused.get(update.device)) is not None:
                log.warning("aggregate_train: left out node %d: %s", reply.metadata.src_node_id, why)
                refused_nodes.add(reply.metadata.src_node_id)
        used = {c.update.device for c in aggregation.used}
        finite = all_finite(aggregation.state.w)
        if used and finite:
            self._state = aggregation.state
        else:
            self._state = replace(self._state, round=server_round)
        self._judge(refused_nodes, used)
        if not used:
            return None, None
        if not finite:
            log.warning("aggregate_train: the next weights would not be finite: the old ones stay")
            return None, None
        nodes = [reply.metadata.src_node_id for reply in taken]
        self._counted |= {node: server_round for node in nodes if self._numbers[node] in used}
        completed = [c.update.device for c in aggregation.used if c.scale * c.update.scaled != 1]
        if completed:
            log.info("aggregate_train: completed %d of %d updates", len(completed), len(used))
        believed = [reply.content for reply in taken if self._numbers[reply.metadata.src_node_id] in used]
        metrics = self.train_metrics_aggr_fn(keep_common_metrics(believed), self.weighted_by_key)
        metrics["completed"] = len(completed)
        return self._unflatten(self._state.w), metrics

    def _find_unfinished(self, updates: Sequence[Update], works: Sequence[Work]) -> list[Update]:
        """Return the updates with what each client was asked for: what it did, unless it shows that it was more."""
        silent = self._steps is None and all(work.asked is None and not work.cut_short for work in works)
        if updates and silent and not self._advised and self._policy_name in ("complete", "drop"):
            self._advised = True
            log.warning("aggregate_train: no client shows unfinished work, so nothing is: %s", WHAT_TO_REPORT)
        full = max((max(work.steps, work.asked or 0) for work in works), default=0)
        asked = (work.asked or self._steps or (full if work.cut_short else work.steps) for work in works)
        return [replace(u, steps_asked=max(a, u.steps)) for u, a in zip(updates, asked, strict=True)]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the mean of what clients measured; a reply that cannot be right is left out and logged."""
        believed = list[Message]()
        counts = dict[int, int]()
        for reply in take_replies_without_errors(self, replies, is_train=False):
            try:
                with reading_a_reply():
                    counts[reply.metadata.src_node_id] = read_evaluation(reply, self.weighted_by_key)
                believed.append(reply)
            except Refused as refused:
                log.warning("aggregate_evaluate: left out node %d: %s", reply.metadata.src_node_id, refused)
        most = MOST_TIMES * median_low(list(counts.values()) or [0])
        for node in [node for node, count in counts.items() if count > most]:
            log.warning("aggregate_evaluate: left out node %d: it claims %d examples", node, counts[node])
        believed = [reply for reply in believed if counts[reply.metadata.src_node_id] <= most]
        if not believed:
            return None
        common = keep_common_metrics([reply.content for reply in believed])
        return self.evaluate_metrics_aggr_fn(common, self.weighted_by_key)

    def _weigh(self, update: Update, reply: Message, share: float) -> Contribution:
        """Return how an update counts."""
        return Contribution(update, weight=float(update.examples), share=share)

    def _find_sent(self, reply: Message) -> Vector:
        """Return the weights that a reply began from."""
        assert self._state is not None
        return self._state.w

    def _update(self, reply: Message) -> tuple[Update, Work]:
        content, w = reply.content, self._find_sent(reply)
        numbers = [dict(record) for record in content.metric_records.values()]
        if len(numbers) != 1:
            raise Refused("it sent no metrics, or more than one record of them")
        work, examples = read_work(numbers[0]), read_count(numbers[0], self.weighted_by_key)
        if not 1 <= examples <= MOST_EXAMPLES:
            raise Refused(f"it says {self.weighted_by_key} {examples}")
        most = min(filter(None, (work.asked, self._steps)), default=work.steps)
        if work.steps > most:
            raise Refused(f"it claims {work.steps} steps, and was asked for {most}")
        uploaded = content.array_records.get(UPLOADED)
        if self._method.uploads and uploaded is None:
            raise Refused(f"it sent no {', '.join(self._method.uploads)}: {self.method_name} needs LocalTerms")
        uploads = check_vectors(uploaded, dict.fromkeys(self._method.uploads, len(w))) if self._method.uploads else {}
        returned = [record for key, record in content.array_records.items() if key != UPLOADED]
        if len(returned) != 1:
            raise Refused(f"it sent {len(returned)} records of weights")
        update = Update(
            device=self._number(reply.metadata.src_node_id),
            delta=self._weights(returned[0]).sub_(w),
            examples=examples,
            steps=work.steps,
            steps_asked=work.asked or work.steps,
            train_loss=math.nan,
            uploads=uploads,
            lr=self._lr,
            momentum=self._momentum,
        )
        return update, work

    def _weights(self, record: ArrayRecord) -> Vector:
        """Return the weights of a reply as one vector; Refused unless they are the model's, and finite."""
        for name, shape, dtype in self._layout:
            array = record.get(name)
            if array is None:
                raise Refused(f"it sent no {name}")
            if tuple(array.shape) != shape or array.dtype != dtype:
                raise Refused(f"{name} is {tuple(array.shape)} of {array.dtype}, and the model's {shape} of {dtype}")
        pieces = [check_array(name, record[name]) for name, _, _ in self._layout]
        return torch.from_numpy(np.concatenate([piece.astype(np.float32).reshape(-1) for piece in pieces]))

    def _unflatten(self, w: Vector) -> ArrayRecord:
        """Return the vector as the arrays it came from; arrays that are not of floating point stay as they were."""
        arrays, start = dict[str, Array](self._arrays.items()), 0
        for name, shape, dtype in self._layout:
            end = start + math.prod(shape)
            arrays[name] = Array(w[start:end].numpy().reshape(shape).astype(dtype))
            start = end
        return ArrayRecord(arrays)


class FedLGA(Unequal):
    """Averaging in which the unfinished updates of slow devices are completed first."""

    method_name = "fedlga"


class FedNova(Unequal):
    """Each update counts per step it took."""

    method_name = "fednova"


class Scaffold(Unequal):
    """Each device corrects its gradients by how its mean gradient differs from that of all; needs LocalTerms."""

    method_name = "scaffold"


class FedDyn(Unequal):
    """Each device's loss is changed so that its optimum and that of all devices agree; needs LocalTerms."""

    method_name = "feddyn"


def _divide(names: dict[str, str], options: dict[str, Any] | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield kind, name and settings of each part; a setting goes to the part that has one of its name."""
    left = dict(options or {})
    for kind, name in names.items():
        known = {f.name for f in settings_of(find(kind, name))}
        yield kind, name, {key: left.pop(key) for key in list(left) if key in known}
    if left:
        raise BadInput(f"options: got {', '.join(left)}; none of {', '.join(names.values())} has such a setting")


def select_floats(arrays: ArrayRecord) -> dict[str, Array]:
    """Return the arrays of floating point: the others are not trained."""
    return {name: array for name, array in arrays.items() if array.dtype.startswith("float")}


def flatten(arrays: dict[str, Array]) -> Vector:
    """Return arrays as one vector."""
    return torch.from_numpy(np.concatenate([array.numpy().astype(np.float32).reshape(-1) for array in arrays.values()]))
