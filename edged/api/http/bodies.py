"""Reads the bodies of requests. Limits the size and the time of each body, and the size of all bodies together.

Only bytes that were received count, not the announced size. When no room is left, the slowest body is refused:
otherwise a few clients that stop in the middle of a body could block all others.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from edged.api.http.exchange import Part
from edged.errors import DeadlineExceeded, InvalidInput, Overloaded, TooLarge, Unsupported

Receive: TypeAlias = "Callable[[], Awaitable[Any]]"

_SLOWEST = 32 << 10  # lowest rate in bytes per second, over `idle_seconds`; a slower body would hold its room for hours
_STEP, _BEHIND_SECONDS = 64 << 10, 0.5  # a body that needs more than _BEHIND_SECONDS for _STEP bytes may be refused
_LINGER_SECONDS = 2.0  # how long the rest of a refused body is read: many clients read the response only after that
_AGAIN = "send the request again later, or faster"


class Gone(Exception):
    """The client disconnected before its request was complete."""


class TooSlow(DeadlineExceeded):
    """A request that takes too long to arrive."""


class Bodies:
    """Limits bodies to `limit` bytes each and `room` bytes together. A body counts while its context `held` is open.
    `setting` is the configuration key of `limit`, which error messages name; empty if the limit is fixed."""

    idle_seconds = 20.0  # time in which the next piece of a body must arrive

    def __init__(self, limit: int, room: int, setting: str = "") -> None:
        self.limit, self._room, self.setting = limit, room, setting
        self.used = 0
        self._coming: set[Held] = set()

    @contextmanager
    def held(self) -> Iterator[Held]:
        held = Held(self)
        try:
            yield held
        finally:
            self._coming.discard(held)
            self.used -= held.size

    def take(self, held: Held, size: int) -> None:
        """Count `size` more bytes of a body. If no room is left, end the slowest body and use its room. Raises
        Overloaded if this body is the slowest, if no body is slow enough to be ended, or if the end of the slowest body
        would not make enough room."""
        if self.used + size > self._room:
            slowest = min(self._coming, key=lambda each: each.since, default=held)
            is_behind = time.monotonic() - slowest.since > _BEHIND_SECONDS
            if slowest is held or not is_behind or self.used + size - slowest.size > self._room:
                raise Overloaded(
                    f"no room for the body: requests hold {self.used >> 20} of the {self._room >> 20} MiB for all"
                    f" bodies; {_AGAIN}"
                )
            slowest.give_way()
        self.used += size

    @contextmanager
    def coming(self, held: Held) -> Iterator[None]:
        """While the `with` block runs, the body is being received and may be ended for a faster body."""
        self._coming.add(held)
        try:
            yield
        finally:
            self._coming.discard(held)


class Held:
    """One request's body; `size` is the number of its bytes that count in `Bodies`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self.size = bodies, 0
        self.since = time.monotonic()  # when the last _STEP bytes were complete
        self._due = _STEP
        self._piece: asyncio.Future[Any] | None = None  # the next piece, while it is awaited
        self._has_given_way = False

    def grow(self, size: int) -> None:
        self._bodies.take(self, size)
        self.size += size
        if self.size >= self._due:
            self.since, self._due = time.monotonic(), self.size + _STEP

    def give_way(self) -> None:
        """Free the room of this body at once. The request ends with Overloaded."""
        self._has_given_way = True
        self.shrink(self.size)
        if self._piece is not None:
            self._piece.cancel()

    def shrink(self, size: int) -> None:
        self._bodies.used -= size
        self.size -= size

    async def read(self, receive: Receive, headers: Mapping[str, str]) -> bytes:
        """Read the whole body. Raises TooLarge, Overloaded, TooSlow, or Gone if the client disconnected."""
        declared = _declared(headers)
        try:
            if declared is not None:
                self._require(declared)
            with self._bodies.coming(self):
                return await self._all(receive)
        except (TooLarge, Overloaded):
            if "expect" not in headers:  # a client that waits for "100 Continue" has not begun to send
                await _drain(receive)
            raise

    async def _all(self, receive: Receive) -> bytes:
        pieces: list[bytes] = []
        seconds = self._bodies.idle_seconds
        size, ends, due = 0, time.monotonic() + seconds, _SLOWEST * seconds
        while True:
            if size >= due:
                ends, due = time.monotonic() + seconds, size + _SLOWEST * seconds
            self._piece = asyncio.ensure_future(receive())
            try:
                event = await asyncio.wait_for(self._piece, max(0.0, ends - time.monotonic()))
            except asyncio.TimeoutError:
                raise TooSlow(
                    f"the body arrived too slowly: {size} bytes so far; send at least {_SLOWEST >> 10} KiB a second"
                ) from None
            except asyncio.CancelledError:
                if self._has_given_way:
                    raise Overloaded(
                        f"the body arrived more slowly than others, and the room for bodies is full; {_AGAIN}"
                    ) from None
                raise
            finally:
                self._piece = None
            if event["type"] == "http.disconnect":
                raise Gone
            piece = event.get("body", b"")
            size += len(piece)
            self._require(size)
            self.grow(len(piece))
            pieces.append(piece)
            if not event.get("more_body", False):
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _require(self, size: int) -> None:
        limit = self._bodies.limit
        if size > limit:
            remedy = f"send less, or raise {self._bodies.setting}" if self._bodies.setting else "send less"
            raise TooLarge(f"the body has more than {limit >> 20} MiB; {remedy}")


def _declared(headers: Mapping[str, str]) -> int | None:
    """Return the size that the headers declare; None for a body in chunks. Raises InvalidInput."""
    if "transfer-encoding" in headers:
        return None
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidInput("the header 'content-length' is not a number")
    return int(text)


async def _drain(receive: Receive) -> None:
    """Read and drop the rest of a body, for at most two seconds."""

    async def read() -> None:
        while True:
            event = await receive()
            if event["type"] == "http.disconnect" or not event.get("more_body", False):
                return

    try:
        await asyncio.wait_for(read(), _LINGER_SECONDS)
    except asyncio.TimeoutError:
        return


MOST = 16 << 20  # bytes of the largest unpacked body: a few kilobytes could unpack to gigabytes
MOST_TIMES = 1032  # the largest factor by which zlib can compress: https://zlib.net/zlib_tech.html
_EITHER = 47  # accepts the header of zlib or of gzip
_BITS = {"gzip": 31, "deflate": 15}
_NAMES = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "deflate"}
_FAST = 1  # higher levels hardly make tensors smaller


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """Decompress a body. Raises TooLarge above `limit` bytes, InvalidInput for a damaged body, Unsupported for an
    unknown encoding."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _NAMES:
        raise Unsupported(f"content-encoding {encoding[:40]!r} is not known; use gzip, deflate or none")
    reader = zlib.decompressobj(_EITHER)
    try:
        found = reader.decompress(body, limit + 1)
    except zlib.error:
        raise InvalidInput(f"the body is not valid {name}") from None
    if len(found) > limit:
        raise TooLarge(f"the body unpacks to more than {limit >> 20} MiB; send less, or send it uncompressed")
    if not reader.eof or reader.unused_data:
        raise InvalidInput(f"the body is incomplete {name}, or bytes follow the {name}")
    return found


def accepted(header: str) -> str | None:
    """Return the first supported encoding in an Accept-Encoding header; None if the header has no such encoding."""
    for each in header.split(","):
        name, _, quality = each.partition(";")
        if name.strip().lower() in _BITS and quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000"):
            return name.strip().lower()
    return None


def packed(parts: Iterable[Part], encoding: str) -> bytes:
    """Return a compressed body; `encoding` is a result of `accepted`."""
    writer = zlib.compressobj(_FAST, zlib.DEFLATED, _BITS[encoding])
    return b"".join([*map(writer.compress, parts), writer.flush()])
