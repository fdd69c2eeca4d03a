"""For your own Flower client: it completes its own update, so that the aggregator needs the sum of updates only.

app = ClientApp(mods=[fixedclipping_mod, complete_own_mod])    # the last is the first to see what the client returns

The strategy `PrivateFedLGA` sends the numbers for it. With any other strategy the mod does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from fedlga.backends.flower.client_report import read_work
from fedlga.core.completion.private import Instruction

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable

EXPONENT, LONGEST, MOMENTUM = "fedlga-exponent", "fedlga-longest", "fedlga-momentum"  # that the strategy sends
SCALED, LENGTH = "fedlga-scaled", "fedlga-length"  # that the client reports

Record = TypeVar("Record")


def complete_own_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let the client train; then multiply how far it moved the weights, if it was cut short."""
    records = list(message.content.config_records.values())
    config: dict[str, Any] = dict(records[0] if records else ConfigRecord())
    reply = call_next(message, context)
    if EXPONENT not in config or reply.has_error():
        return reply
    _, sent = _take_one(message.content.array_records)
    key, returned = _take_one(reply.content.array_records)
    _, metrics = _take_one(reply.content.metric_records)
    work, told = read_work(metrics), Instruction(config[EXPONENT], config.get(LONGEST))
    floats = [name for name, array in returned.items() if array.dtype.startswith("float")]
    moved = {name: returned[name].numpy() - sent[name].numpy() for name in floats}
    length = math.sqrt(sum(float(np.sum(np.square(part, dtype=np.float64))) for part in moved.values()))
    scale = told.find_scale(work.steps, work.asked or 0, length, config.get(MOMENTUM, 0.0))
    if scale != 1:
        completed = {name: sent[name].numpy() + scale * part for name, part in moved.items()}
        arrays = {name: Array(completed[name].astype(moved[name].dtype)) for name in floats}
        reply.content[key] = ArrayRecord({**returned, **arrays})
    metrics[SCALED], metrics[LENGTH] = scale, length
    return reply


def _take_one(records: Mapping[str, Record]) -> tuple[str, Record]:
    """Return the only record of its kind."""
    if len(records) != 1:
        raise ValueError(f"complete_own_mod takes one record of arrays and one of metrics; there are {len(records)}")
    return next(iter(records.items()))
