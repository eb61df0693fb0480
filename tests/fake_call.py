"""A call object for handlers, without a connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from types import SimpleNamespace

from edged.api.http2.call import Message
from edged.api.http2.headers import Head, Metadata, Status


class FakeCall:
    """A call whose client sends `sent`; `seconds` is the time until its deadline. `reads` counts the messages read."""

    def __init__(
        self,
        path: str,
        sent: Iterable[Message],
        metadata: Metadata = (),
        *,
        peer: str = "unix:",
        seconds: float | None = None,
    ) -> None:
        self.peer, self.head = peer, Head(path, metadata)
        self.expires = None if seconds is None else time.monotonic() + seconds
        self.connection = SimpleNamespace(certificate=None, memory=None)
        self.written: list[bytes] = []
        self.ended: tuple[Status, str, Metadata] | None = None
        self.reads = 0
        self._sent = iter(sent)
        self._next: Message | None = None

    async def announced(self) -> int | None:
        await asyncio.sleep(0)
        if self._next is None:
            self._next = next(self._sent, None)
        return None if self._next is None else len(self._next)

    async def read(self) -> Message | None:
        await self.announced()
        found, self._next = self._next, None
        self.reads += found is not None
        return found

    async def write(self, data: bytes) -> None:
        self.written.append(data)
        await asyncio.sleep(0)

    async def reply(self, data: bytes) -> None:
        await self.write(data)
        self.finish(Status.OK)

    def finish(self, status: Status, message: str = "", metadata: Metadata = ()) -> None:
        self.ended = self.ended or (status, message, metadata)

    @property
    def status(self) -> Status | None:
        return self.ended[0] if self.ended else None
