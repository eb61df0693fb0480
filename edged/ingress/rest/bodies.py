"""Reads the bodies of requests: how many bytes, for how long, and how many of all requests together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from edged.errors import DeadlineExceeded, InvalidInput, Overloaded, TooLarge

Receive: TypeAlias = "Callable[[], Awaitable[Any]]"

_IDLE_SECONDS = 20.0  # for the next piece of a body
_SLOWEST = 32 << 10  # bytes a second, over the whole body; above what a trickle needs to hold a place for hours
_LINGER_SECONDS = 2.0  # what is refused is read on for, so that the client is not cut off before it reads why


class Gone(Exception):
    """The client left before its request was whole."""


class TooSlow(DeadlineExceeded):
    """A request that takes too long to arrive."""


class Bodies:
    """Holds at most `limit` bytes of one body and `room` of all. The room counts a body as long as it is in `held`."""

    def __init__(self, limit: int, room: int) -> None:
        self.limit, self._room = limit, room
        self.used = 0

    @contextmanager
    def held(self) -> Iterator[Held]:
        held = Held(self)
        try:
            yield held
        finally:
            self.used -= held.size

    def take(self, size: int) -> None:
        """Overloaded where there is no room for so many bytes more."""
        if self.used + size > self._room:
            raise Overloaded(f"requests under way hold {self.used} bytes; send this one again when some are answered")
        self.used += size


class Held:
    """The room that one request takes."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self.size = bodies, 0

    def grow(self, size: int) -> None:
        self._bodies.take(size)
        self.size += size

    def shrink(self, size: int) -> None:
        self._bodies.used -= size
        self.size -= size

    async def read(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """The whole body. TooLarge, Overloaded, TooSlow; Gone when the client left."""
        declared = _declared(headers)
        try:
            if declared is not None:
                self._require(declared)
                self.grow(declared)
            return await self._all(receive, declared)
        except (TooLarge, Overloaded):
            # Who waits to be told to go on has sent nothing yet.
            if "expect" not in headers:
                await _drain(receive)
            raise

    async def _all(self, receive: Receive, declared: int | None) -> bytes:
        pieces: list[bytes] = []
        size, started = 0, time.monotonic()
        while True:
            allowed = _IDLE_SECONDS + size / _SLOWEST - (time.monotonic() - started)
            try:
                event = await asyncio.wait_for(receive(), max(0.0, min(_IDLE_SECONDS, allowed)))
            except asyncio.TimeoutError:
                raise TooSlow(f"the body came too slowly: {size} bytes so far; send it again") from None
            if event["type"] == "http.disconnect":
                raise Gone
            piece = event.get("body", b"")
            size += len(piece)
            if declared is None:
                self._require(size)
                self.grow(len(piece))
            pieces.append(piece)
            if not event.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _require(self, size: int) -> None:
        limit = self._bodies.limit
        if size > limit:
            raise TooLarge(f"the body has more than {limit} bytes; raise body_mb of [http] or send less")


def _declared(headers: Mapping[str, str]) -> int | None:
    """The size that the request has by its own words; None for one in chunks. The server has checked that it is one."""
    if "transfer-encoding" in headers:
        return None
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidInput("content-length is no number")
    return int(text)


async def _drain(receive: Receive) -> None:
    """Reads on for a while, keeping nothing."""

    async def read() -> None:
        while True:
            event = await receive()
            if event["type"] == "http.disconnect" or not event.get("more_body", False):
                return

    try:
        await asyncio.wait_for(read(), _LINGER_SECONDS)
    except asyncio.TimeoutError:
        return
