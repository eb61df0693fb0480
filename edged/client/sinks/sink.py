"""What every sink is."""

from __future__ import annotations

from edged.client.sinks.answered import Answered


class Sink:
    """Is given every result. `wants_pictures` has the pictures kept until their answers come; `name` is for
    messages."""

    name = "sink"
    wants_pictures = False

    def on_answer(self, answered: Answered) -> None:
        """Quickly, since the stream waits. Raises OSError or an EdgedError when it can take no more."""
        raise NotImplementedError

    def close(self) -> None:
        """Finishes what it has; nothing is given afterwards."""
