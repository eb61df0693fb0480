"""What every sink is."""

from __future__ import annotations

from abc import ABC, abstractmethod

from edged.client.sinks.answered import Answered


class Sink(ABC):
    """Is given every result. `wants_pictures` has the pictures kept until their answers come; `name` is for
    messages."""

    name = "sink"
    wants_pictures = False

    @abstractmethod
    def on_answer(self, answered: Answered) -> None:
        """Quickly, since the stream waits. Raises OSError or an EdgedError when it can take no more."""

    def close(self) -> None:  # noqa: B027 - not every sink has something to finish
        """Finishes what it has; nothing is given afterwards."""
