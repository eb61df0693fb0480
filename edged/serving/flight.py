"""Work that is under way in an engine host together: sent, and not answered yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from edged.errors import EdgedError
from edged.ipc.arena import Arena, Span
from edged.serving.link import HostLink, Reply
from edged.serving.parcel import Parcel, order


class Flight:
    """`future` ends with the host's reply, whose outputs are in `reply` of the arena as far as they fit. When nobody
    waits for any part of it any more, it is stopped where the runtime can be."""

    __slots__ = ("_link", "future", "parcels", "reply")

    def __init__(self, link: HostLink, session: int, parcels: Sequence[Parcel], reply_bytes: int) -> None:
        """Sends the parcels; `reply_bytes` is how large the reply is likely to be. An EdgedError where the host takes
        nothing: then they are where they were before, in the arena."""
        self._link, self.parcels = link, parcels
        self.reply = _room(link.arena, reply_bytes)
        try:
            self.future: asyncio.Future[Reply] = link.submit(order(parcels, session, self.reply))
        except BaseException:
            self._give_back()
            raise
        for parcel in parcels:
            parcel.work.future.add_done_callback(self._heed)

    def land(self) -> None:
        """It is over: what it had of the arena is another's."""
        for parcel in self.parcels:
            parcel.release()
        self._give_back()

    def _heed(self, waiting: asyncio.Future[Any]) -> None:
        if not waiting.cancelled() or self.future.done():
            return
        if not any(parcel.work.is_wanted for parcel in self.parcels):
            self._link.abandon(self.future)

    def _give_back(self) -> None:
        if self.reply is not None:
            self._link.arena.release(self.reply)
            self.reply = None


def _room(arena: Arena, size: int) -> Span | None:
    """Where the answer goes if there is room; otherwise it comes in the message, which is slower and always works."""
    try:
        return arena.reserve(size) if size else None
    except EdgedError:
        return None
