"""Running a contract: each check is a function whose docstring says what must hold."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fedlga.core.registry import SEAMS, find
from fedlga.core.settings import BadInput, choose

Check = Callable[[str], None]  # gets the name of what is checked; raises AssertionError or BadInput


class ContractBroken(AssertionError):
    """A check of a contract fails; the message says which, and how."""


class NotChecked(Exception):
    """A check that cannot be made here; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """What one check gave."""

    what: str  # that must hold
    problem: str | None = None
    skipped: str | None = None


def run_contract(kind: str, name: str) -> Iterator[Outcome]:
    """Yield the outcome of each check of a kind's contract, for a built-in name or 'package.module:Class'."""
    choose("KIND", kind, SEAMS)
    find(kind, name)  # BadInput, if there is no such thing
    for check in importlib.import_module(f"fedlga.contracts.{kind}").CHECKS:
        what = (inspect.getdoc(check) or check.__name__).partition("\n")[0].rstrip(".")
        try:
            check(name)
        except NotChecked as reason:
            yield Outcome(what, skipped=str(reason))
        except (AssertionError, BadInput) as error:
            yield Outcome(what, problem=str(error) or "it does not hold")
        except Exception as error:
            yield Outcome(what, problem=f"{type(error).__name__}: {error}")
        else:
            yield Outcome(what)


def check_contract(kind: str, name: str) -> None:
    """Raise ContractBroken with the first check that fails."""
    for outcome in run_contract(kind, name):
        if outcome.problem is not None:
            raise ContractBroken(f"{kind} {name}: {outcome.what}: {outcome.problem}")


def expect(condition: Any, problem: str) -> None:
    """Raise an AssertionError with a message unless the condition holds."""
    if not condition:
        raise AssertionError(problem)
