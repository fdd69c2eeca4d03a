"""What the clients of a Flower app report of their work, and which of it shows that a device was cut short."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedlga.backends.flower.messages import MOST_EXAMPLES, Refused

if TYPE_CHECKING:
    from flwr.app import Message

STEPS, ASKED = "num-steps", "num-steps-asked"
EPOCHS, EPOCHS_ASKED = "num-epochs", "num-epochs-asked"
CUT_SHORT = "cut-short"
WHAT_TO_REPORT = (
    f'a client reports "{STEPS}" among its metrics, and to have unfinished work completed also what it was asked for: '
    f'"{ASKED}", or "{EPOCHS}" and "{EPOCHS_ASKED}", or "{CUT_SHORT}": 1 if its time was up'
)


class NoSteps(Refused):
    """A reply that does not say how many steps its client did."""


@dataclass(frozen=True)
class Work:
    """What a client did, by its own account."""

    steps: int
    asked: int | None  # None: it does not say
    cut_short: bool  # it says that it was, and not what it was asked for


def read_work(numbers: Mapping[str, Any]) -> Work:
    """Return what a client reports of its work; Refused if it cannot be right."""
    if STEPS not in numbers:
        raise NoSteps(f"its metrics have no {STEPS}")
    steps = read_count(numbers, STEPS)
    if steps == 0:
        raise Refused("it did not do a single step")
    if ASKED in numbers:
        return Work(steps, read_count(numbers, ASKED), cut_short=False)
    if EPOCHS in numbers and EPOCHS_ASKED in numbers:
        done, asked = (_read_number(numbers, name) for name in (EPOCHS, EPOCHS_ASKED))
        if not 0 < done <= asked <= MOST_EXAMPLES:
            raise Refused(f"it says {EPOCHS} {done:g} of {asked:g}")
        full = steps * asked / done
        if not full <= MOST_EXAMPLES:  # perhaps not even finite
            raise Refused(f"it says {EPOCHS} {done:g} of {asked:g}, in {steps:g} steps")
        return Work(steps, round(full), cut_short=False)
    return Work(steps, None, cut_short=bool(_read_number(numbers, CUT_SHORT)) if CUT_SHORT in numbers else False)


def read_count(numbers: Mapping[str, Any], name: str) -> int:
    """Return a whole number that a client reports."""
    value = _read_number(numbers, name)
    if not 0 <= value <= MOST_EXAMPLES or value != int(value):
        raise Refused(f"it says {name} {value}")
    return int(value)


def _read_number(numbers: Mapping[str, Any], name: str) -> float:
    value = numbers.get(name)
    if value is None:
        raise Refused(f"its metrics have no {name}")
    if isinstance(value, list) or not math.isfinite(value):
        raise Refused(f"it says {name} {value}")
    return value


def find_full_work(reply: Message) -> float | None:
    """Return what a client reports it was asked for, or else what it did, if that can be."""
    reported = {name: value for record in reply.content.metric_records.values() for name, value in record.items()}
    value = reported.get(ASKED, reported.get(STEPS))
    return value if isinstance(value, (int, float)) and 0 < value <= MOST_EXAMPLES else None
