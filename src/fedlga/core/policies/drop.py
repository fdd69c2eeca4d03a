"""Throw unfinished work away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.policies.base import AS_SENT, Decision, Policy
from fedlga.core.types import ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.completion.digest import UpdateDigest


@final
@dataclass(frozen=True)
class Drop(Policy):
    """Unfinished work is thrown away, as if the device had not been asked."""

    uses_unfinished = False

    def decide(  # noqa: D102
        self, state: ServerState, updates: Sequence[Update], digests: Mapping[int, UpdateDigest]
    ) -> Decision:
        return Decision({u.device: AS_SENT for u in updates if u.finished})
