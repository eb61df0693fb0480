"""Counts of activities, and failures."""

from __future__ import annotations

import threading
from collections import Counter

_MOST_FAILURES = 20


class Journal:
    """The record of a soak test. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.deeds: Counter[str] = Counter()
        self.failures: dict[str, int] = {}

    def did(self, what: str, count: int = 1) -> None:
        with self._lock:
            self.deeds[what] += count

    def fail(self, what: str) -> None:
        """Add a failure; count it if it is known."""
        with self._lock:
            if what in self.failures or len(self.failures) < _MOST_FAILURES:
                self.failures[what] = self.failures.get(what, 0) + 1

    def reported(self) -> list[str]:
        deeds = ", ".join(f"{count} {what}" for what, count in sorted(self.deeds.items()))
        return [f"done: {deeds}", *(f"FAILED ({count} times): {what}" for what, count in self.failures.items())]
