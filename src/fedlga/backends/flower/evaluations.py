"""What clients measured, in a strategy: which reports can be right, and which of their metrics can be averaged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import cast

from flwr.app import Message, MetricRecord, RecordDict

from fedlga.backends.flower.client_report import read_count
from fedlga.backends.flower.messages import MOST_EXAMPLES, Refused
from fedlga.core.text import clean_text

LONGEST_NAME = 100  # letters of a metric: names are logged


def read_evaluation(reply: Message, weighted_by: str) -> int:
    """Return the examples that a client evaluated on; Refused if its report cannot be right."""
    records = [dict(record) for record in reply.content.metric_records.values()]
    if len(records) != 1:
        raise Refused("it sent no metrics, or more than one record of them")
    for name, value in records[0].items():
        if not _all_finite(value):
            raise Refused(f"it says {name} {value}")
    examples = read_count(records[0], weighted_by)
    if not 1 <= examples <= MOST_EXAMPLES:
        raise Refused(f"it says {weighted_by} {examples}")
    return examples


def keep_common_metrics(contents: list[RecordDict]) -> list[RecordDict]:
    """Return the replies with only the metrics that most of them have in the same form: others cannot be averaged.

    A reply that lacks one of these, or has another form of it, is left out, unless that were most replies: then only
    what all have is left. A metric whose name is no plain word is left out: names are logged. So is a value that is not
    finite.
    """
    named = [next(iter(content.metric_records.items())) for content in contents]
    forms = [{(k, _form(v)) for k, v in numbers.items() if _is_plain(k) and _all_finite(v)} for _, numbers in named]
    votes = Counter(form for forms_of_one in forms for form in forms_of_one)
    common = {form for form, count in votes.items() if 2 * count > len(forms)}
    if 2 * sum(common <= own for own in forms) <= len(forms):
        common = {form for form, count in votes.items() if count == len(forms)}
    names = {k for k, _ in common}
    return [
        RecordDict({**content, key: MetricRecord({k: v for k, v in numbers.items() if k in names})})
        for content, (key, numbers), own in zip(contents, named, forms, strict=True)
        if common <= own
    ]


def _form(value: object) -> int | None:
    return len(cast("list[float]", value)) if isinstance(value, list) else None


def _is_plain(name: str) -> bool:
    return name == clean_text(name, LONGEST_NAME)


def _all_finite(value: float | Sequence[float]) -> bool:
    return all(map(math.isfinite, value if isinstance(value, list) else [cast("float", value)]))
