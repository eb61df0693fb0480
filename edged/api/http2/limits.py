"""Limits of one connection, and the allowance for frames that carry no message."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edged.api.http2.frames import Code, ConnectionFault

_ANSWERED = 2.0  # back to the allowance for a message: clients allow more bytes, and acknowledge

# Costs of frames, in units of the allowance.
FRAME = 1.0
CALL = 4.0  # one that begins in vain
SETTINGS = 16.0  # each running call has a window
BLOCK_BYTES = 512  # of headers, for one unit
TINY_BYTES = 64  # of a frame with a part of a message, below which it counts as one without


class Limits(msgspec.Struct, frozen=True):
    """Limits of one connection. Sizes in bytes, times in seconds.

    `stream_window`: what a client may send of one call before it is read. The connection's window is as large for
    all of its calls together, so that unread ones keep nothing from the others. A frame that carries no message takes
    one of `allowance`, which grows by `allowance_second` a second. `keepalive`: without a sign of the client it is
    pinged, and the connection is closed if it does not answer within `answer`."""

    max_message: int = 32 << 20
    streams: int = 1024
    stream_window: int = 512 << 10
    frame: int = 1 << 20
    allowance: float = 4000.0
    allowance_second: float = 1000.0
    handshake: float = 10.0
    keepalive: float = 30.0
    answer: float = 10.0

    @property
    def window(self) -> int:
        return self.streams * self.stream_window


class Allowance:
    """How many more frames without a message a client may send. It grows with time and with answers."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        """now: a monotonic clock, in seconds."""
        self._most, self._per_second, self._now = limits.allowance, limits.allowance_second, now
        self._left, self._grown_at = limits.allowance, now()

    def answered(self, messages: int = 1) -> None:
        """Count messages that the daemon read or sent."""
        self._left += _ANSWERED * messages

    def charge(self, cost: float = FRAME) -> None:
        """Take `cost` from the allowance. ConnectionFault if nothing is left."""
        self._left = min(self._left, self._most) - cost
        if self._left < 0:
            now = self._now()
            self._left = min(self._most, self._left + (now - self._grown_at) * self._per_second)
            self._grown_at = now
            if self._left < 0:
                raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many frames without a message")
