"""Average whatever arrived."""

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
class Keep(Policy):
    """Unfinished work is averaged as it came."""

    def decide(  # noqa: D102
        self, state: ServerState, updates: Sequence[Update], digests: Mapping[int, UpdateDigest]
    ) -> Decision:
        return Decision({u.device: AS_SENT for u in updates})
