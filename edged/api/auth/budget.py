"""Large messages take turns, so that small ones are answered while they are read, parsed and answered.

A message of many megabytes is copied several times on the event loop, and each copy takes milliseconds. What is counted
here are the bytes of large messages that have come and are not answered yet, of one client and of all together. What
does not fit waits, and while it waits its stream is read no further. When too much waits, requests are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import NamedTuple

from edged.api.auth.callers import Caller
from edged.errors import ClientLimited

LARGE = 1 << 20  # bytes, from which on a message is counted
_TOTAL, _EACH = 32 << 20, 16 << 20  # bytes, of all clients and of one
_PER_SECOND = 384 << 20  # bytes; a message keeps its room for at least that long, so that others have their turns
_REFUSAL_SECONDS = 0.5  # after which there may be room for a request that was refused


class _Waiter(NamedTuple):
    client: str
    size: int
    turn: asyncio.Future[None]


class LargeMessage:
    """The large message of one call, if it has one at the moment; its bytes are counted from `begin` to `end`."""

    def __init__(self, budget: Budget, peer: str, who: Caller) -> None:
        """`peer` is the connection as gRPC names it; those of a unix socket have no names."""
        self._budget, self._client = budget, who.key if peer.startswith("unix:") else peer
        self._size, self._began = 0, 0.0

    async def begin(self, size: int, *, is_patient: bool = True) -> None:
        await self._budget.take(self._client, size, is_patient=is_patient)
        self._size, self._began = size, time.monotonic()

    def end(self) -> None:
        if self._size:
            self._budget.give_back(self._client, self._size, time.monotonic() - self._began)
            self._size = 0


class Budget:
    """Of one event loop. `total` bytes may be under way at a time, `each` of one client, and as many may wait. One
    message alone always may."""

    def __init__(self, total: int = _TOTAL, each: int = _EACH, refused_after: float = _REFUSAL_SECONDS) -> None:
        """`refused_after`: seconds until a refusal, so that a client that tries again at once comes no sooner."""
        self.total, self.each, self._refused_after = total, each, refused_after
        self.used = 0
        self._by_client: Counter[str] = Counter()
        self._waiting: deque[_Waiter] = deque()

    async def take(self, client: str, size: int, *, is_patient: bool = True) -> None:
        """Waits until so many bytes of a client have room; `give_back` follows. ClientLimited for an impatient one when
        too much waits already."""
        if not self._waiting and self._fits(client, size):
            self._add(client, size)
            return
        if not is_patient and sum(each.size for each in self._waiting) + size > self.total:
            await asyncio.sleep(self._refused_after)
            raise ClientLimited(
                f"too many large requests are under way; try again in {_REFUSAL_SECONDS:g} s, or send smaller ones",
                _REFUSAL_SECONDS,
            )
        waiter = _Waiter(client, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._remove(client, size)
            else:
                self._waiting.remove(waiter)
            self._wake()
            raise

    def give_back(self, client: str, size: int, seconds: float) -> None:
        """A message that was under way for so long is not any more."""
        rest = size / _PER_SECOND - seconds
        if rest > 0:
            asyncio.get_running_loop().call_later(rest, self._end, client, size)
        else:
            self._end(client, size)

    def _end(self, client: str, size: int) -> None:
        self._remove(client, size)
        self._wake()

    def _wake(self) -> None:
        """Gives turns in the order of coming; a client that has its share is passed over."""
        kept: deque[_Waiter] = deque()
        while self._waiting:
            waiter = self._waiting.popleft()
            if waiter.turn.done():
                continue
            if self._fits(waiter.client, waiter.size):
                self._add(waiter.client, waiter.size)
                waiter.turn.set_result(None)
                continue
            kept.append(waiter)
            if self.used and self.used + waiter.size > self.total:
                break
        self._waiting.extendleft(reversed(kept))

    def _fits(self, client: str, size: int) -> bool:
        has = self._by_client[client]
        return (not self.used or self.used + size <= self.total) and (not has or has + size <= self.each)

    def _add(self, client: str, size: int) -> None:
        self.used += size
        self._by_client[client] += size

    def _remove(self, client: str, size: int) -> None:
        self.used -= size
        self._by_client[client] -= size
        if not self._by_client[client]:
            del self._by_client[client]
