"""Limits of one connection, and the allowance for frames that carry no message."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from edged.api.http2.frames import Code, ConnectionFault

_ANSWERED = 2.0  # units that a message adds, since clients answer messages with window updates and acknowledgements

# Costs of frames, in units of the allowance.
FRAME = 1.0
CALL = 4.0  # a call that is reset or malformed
SETTINGS = 16.0  # settings change the window of each running call
BLOCK_BYTES = 512  # this many bytes of headers cost one unit
TINY_BYTES = 64  # a DATA frame with fewer bytes costs a unit too


class Limits(msgspec.Struct, frozen=True):
    """Limits of one connection. Sizes in bytes, times in seconds.

    `stream_window`: bytes of one call that a client may send before the daemon has read them. Messages below
    `edged.api.auth.limits.LARGE` fit into it, so clients send them without a pause. The connection's window is the sum
    of the windows of all its calls, so that unread calls do not block others. Each frame without a message costs units
    of `allowance`, which grows by `allowance_second` per second. A client that is silent for `keepalive` is pinged; the
    connection is closed if the client does not answer within `answer`. After GOAWAY and the last call, the daemon waits
    `linger` seconds for the client to close.
    """

    max_message: int = 32 << 20
    streams: int = 1024
    stream_window: int = 1 << 20
    frame: int = 1 << 20
    allowance: float = 4000.0
    allowance_second: float = 1000.0
    handshake: float = 10.0
    keepalive: float = 30.0
    answer: float = 10.0
    linger: float = 0.5

    @property
    def window(self) -> int:
        return self.streams * self.stream_window


class Allowance:
    """Limits the HTTP/2 frames that carry no part of a message, such as PING and SETTINGS. Each such frame costs units
    of an allowance, which grows with time and with each message."""

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        """`now` is a monotonic clock, in seconds."""
        self._most, self._per_second, self._now = limits.allowance, limits.allowance_second, now
        self._left, self._grown_at = limits.allowance, now()

    def answered(self, messages: int = 1) -> None:
        """Enlarge the allowance, because the daemon read or sent this many messages or parts of messages."""
        self._left += _ANSWERED * messages

    def charge(self, cost: float = FRAME) -> None:
        """Take `cost` from the allowance. Raises ConnectionFault if too little is left."""
        self._left = min(self._left, self._most) - cost
        if self._left < 0:
            now = self._now()
            self._left = min(self._most, self._left + (now - self._grown_at) * self._per_second)
            self._grown_at = now
            if self._left < 0:
                raise ConnectionFault(
                    Code.ENHANCE_YOUR_CALM, "too many frames that carry no message, such as PING and SETTINGS"
                )
