"""Which node is which device. A device's number belongs to the key of one node, and no other node can take it.

A node says which device it is, and the SuperLink says which key it proved to have. The number belongs to the key that
the node was enrolled with under the name `device-N`, or else to the first that came with it.
"""

from __future__ import annotations

import hashlib
import re
import statistics
import time
from collections.abc import Iterable, Mapping
from typing import Any, final

from fedlga.backends.flower.flower_private import Enrolment, find_enrolments
from fedlga.backends.flower.messages import MOST_EXAMPLES
from fedlga.core.guard import MOST_TIMES_EXAMPLES
from fedlga.core.text import clean_text

ASK_AGAIN = 120.0  # seconds until a node that could not be used is asked again
LEAST_KNOWN = 3  # devices, before a number of examples counts as usual
KEY_BYTES = 32  # of a key's fingerprint
ENROLLED = re.compile(r"device-(\d{1,9})")


def device_name(device: int) -> str:
    """Return the name that a node's key is registered with: no other key is this device then."""
    return f"device-{device}"


@final
class Roster:
    """The nodes that are known, by device."""

    def __init__(self, grid: Any, devices: int, *, bind: bool) -> None:
        """`bind`: a number stays with its key; otherwise with whoever has it while being connected."""
        self._grid, self._devices, self._bind = grid, devices, bind
        self._known: dict[int, tuple[int, int]] = {}  # node -> device and examples
        self._failed: dict[int, tuple[str, float]] = {}  # node -> why it cannot be used, and when to ask it again
        self.keys: dict[int, bytes] = {}  # device -> fingerprint of its node's key
        self.duplicates: dict[int, str] = {}  # device -> which other node said that it is the device, since last taken

    def __bool__(self) -> bool:
        """Whether any node was ever good."""
        return bool(self._known)

    @property
    def examples(self) -> dict[int, int]:
        """The examples of each device that was ever connected; of one that claims far more than is usual, the most.

        They say how many steps a device is asked for, and how large a share of the federation each one is.
        """
        claimed = dict(self._known.values())
        if len(claimed) < LEAST_KNOWN:
            return claimed
        most = int(MOST_TIMES_EXAMPLES * statistics.median_low(claimed.values()))
        return {device: min(count, most) for device, count in claimed.items()}

    def nodes(self, online: Iterable[int] | None = None) -> dict[int, int]:
        """Return the node of each device; only of those that are `online`, if these are given."""
        chosen = self._known if online is None else online
        return {self._known[node][0]: node for node in chosen if node in self._known}

    def strangers(self, online: Iterable[int]) -> list[int]:
        """Return the nodes that are to be asked which device they are."""
        now = time.monotonic()
        self._failed = {node: (why, expiry) for node, (why, expiry) in self._failed.items() if now < expiry}
        return [node for node in online if node not in self._known and node not in self._failed]

    def fail(self, node: int, why: str) -> None:
        """Leave a node out for a while."""
        self._failed[node] = clean_text(why), time.monotonic() + ASK_AGAIN

    def why_all_failed(self, online: Iterable[int]) -> str | None:
        """Return why no node can be used, if every one that is there failed and none was ever good."""
        nodes = set(online)
        if nodes and nodes <= set(self._failed) and not self._known:
            return self._failed[next(iter(nodes))][0]
        return None

    def introduce(self, node: int, numbers: Mapping[str, Any]) -> None:
        """Accept which device a node says it is, if it may be that device."""
        device, examples = numbers.get("device"), numbers.get("examples")
        if not isinstance(device, int) or not 0 <= device < self._devices:
            self.fail(node, f"it says it is device {clean_text(device, 50)}, of {self._devices}")
        elif not isinstance(examples, int) or not 1 <= examples <= MOST_EXAMPLES:
            self.fail(node, f"device {device} says it has {clean_text(examples, 50)} examples")
        elif why := self._find_objection(node, device):
            self.duplicates[device] = clean_text(why)
            self.fail(node, why)
        else:  # its old node, if there was one, is gone
            self._known = {other: known for other, known in self._known.items() if known[0] != device}
            self._known[node] = device, examples

    def restore_keys(self, keys: Mapping[int, bytes]) -> None:
        """Put back which device belongs to which key. A node that has taken another's number meanwhile loses it."""
        self.keys = dict(keys)
        enrolled = find_enrolments(self._grid) if self._bind else {}
        for node, (device, _) in list(self._known.items()):
            own = enrolled.get(node)
            if own is not None and device in keys and hashlib.sha256(own.key).digest() != keys[device]:
                del self._known[node]

    def _find_objection(self, node: int, device: int) -> str | None:
        """Return why a node may not be a device; None if it may, and from then on its key is the device's."""
        enrolled = find_enrolments(self._grid) if self._bind else {}
        own = enrolled.get(node, Enrolment(b""))
        named = ENROLLED.fullmatch(own.name)
        if named and int(named[1]) != device:
            return f"node {node} says it is device {device}, and was enrolled as {own.name}"
        if not named and any(other.name == device_name(device) for other in enrolled.values()):
            return f"node {node} says it is device {device}, and another was enrolled as that"
        other = self.nodes(enrolled or self._grid.get_node_ids()).get(device, node)
        if other != node and (not named or enrolled.get(other, own).name == own.name):
            return f"node {node} says it is device {device}, which another node is"
        if own.key:
            key = hashlib.sha256(own.key).digest()
            if not named and self.keys.get(device, key) != key:
                return f"node {node} says it is device {device}, which belongs to another key"
            self.keys[device] = key
        return None
