"""Finds the texts that end an answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Finds stop texts in the text of one request, which arrives in pieces. If the end of a piece may be the beginning
    of a stop text, that end is held back until the next piece."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(filter(None, stops))
        self._held = ""

    def take(self, text: str) -> tuple[str, bool]:
        """Take new text; return the text that can be sent, and whether a stop was found. The text ends before the
        stop."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        longest = max(_begun(text, stop) for stop in self._stops)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest], False

    def rest(self) -> str:
        """Return the text that was held back, when the answer has ended without a stop."""
        held, self._held = self._held, ""
        return held


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of a text are the beginning of a stop."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
