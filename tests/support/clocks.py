"""A clock that only moves when somebody sleeps: tests with deadlines take no time, on a busy machine too."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


class FakeTime:
    """Stands in for the module `time`. Seconds that are sums of powers of two are exact."""

    def __init__(self) -> None:
        self.now = 1024.0
        self._events: list[tuple[float, Callable[[], object]]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Move the clock, and run what is due by then."""
        assert seconds >= 0
        self.now += seconds
        due = [action for moment, action in self._events if moment <= self.now]
        self._events = [(moment, action) for moment, action in self._events if moment > self.now]
        for action in due:
            action()

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Run an action when the clock has moved that far."""
        self._events.append((self.now + seconds, action))

    def replace_time_in(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Give modules that `import time` this clock."""
        for module in modules:
            monkeypatch.setattr(module, "time", self)
