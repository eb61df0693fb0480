"""What reads pictures from somewhere, one after the other."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator

import msgspec

from edged.client.frames import Captured, Picture

_BELIEVED_NS = 5_000_000_000


class Shot(msgspec.Struct, frozen=True, eq=False):
    """A picture that is only made when somebody wants it, so that one that is overtaken costs no conversion.

    The capture times are as in `Captured`. `position` is where it lies in a recording, in seconds, None where that is
    not known.
    """

    develop: Callable[[], Picture]
    captured_unix_ns: int = 0
    captured_mono_ns: int = 0
    position: float | None = None

    @classmethod
    def now(cls, develop: Callable[[], Picture], position: float | None = None) -> Shot:
        return cls(develop, time.time_ns(), time.monotonic_ns(), position)

    @classmethod
    def at(cls, develop: Callable[[], Picture], mono_ns: int, position: float | None = None) -> Shot:
        """`mono_ns` is what the driver says of when it was taken, on the monotonic clock; believed where that is just
        now, since some count from elsewhere."""
        unix_now, mono_now = time.time_ns(), time.monotonic_ns()
        age = mono_now - mono_ns
        if not 0 <= age < _BELIEVED_NS:
            age = 0
        return cls(develop, unix_now - age, mono_now - age, position)

    def captured(self) -> Captured:
        """Raises whatever the conversion raises."""
        return Captured(self.develop(), self.captured_unix_ns, self.captured_mono_ns)


class Reader(ABC):
    """`name` has no secrets in it. `paced` says that shots come in their own time, so that a late one is worthless.
    `damaged` counts those that could not be read, `missed` those that came and went before they could be."""

    paced = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.damaged = 0
        self.missed = 0
        self.stopped = threading.Event()

    @abstractmethod
    def shots(self) -> Generator[Shot, None, None]:
        """To the end, or until `stopped` is set, which ends a wait for the next shot as soon as possible. Closing the
        generator gives back what it holds."""

    def close(self) -> None:  # noqa: B027 - most have opened nothing by then
        """Gives back what was opened before the first shot was asked for."""

    def on_damage(self) -> None:
        self.damaged += 1
