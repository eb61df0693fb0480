"""Limits of one client: its running streams, requests and their bytes, and requests per second.

Beyond these limits, a request is refused, with the time after which to retry, and a stream is read more slowly.

Large messages take turns, so that small messages are answered in between. A message of many megabytes is copied several
times on the event loop, and each copy takes milliseconds. `Budget` counts the bytes of large messages that are not
answered yet, for each client and for all clients together. A message that does not fit waits, and its stream is not
read meanwhile. If too many bytes wait, further requests are refused. A message that arrives slowly ends with an error
if another message waits for its room; otherwise it may take any time, because its client may have a slow link. A
message that a stream holds for long, because its client does not read answers, no longer counts if another one waits.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from edged.api.auth.policy import Caller
from edged.config.schema import Access
from edged.errors import ClientLimited, DeadlineExceeded

Kind: TypeAlias = Literal["streams", "requests", "bytes", "rate"]

_MOST_CLIENTS = 4096  # idle clients that are remembered
_SETTINGS: dict[Kind, str] = {
    "streams": "client_streams",
    "requests": "client_requests",
    "bytes": "client_mb",
    "rate": "client_per_second",
}
_SOON_SECONDS = 0.1  # seconds after which a client may retry: a running request may have ended by then


class Bounds(msgspec.Struct, frozen=True):
    """Limits of one client: `size` in bytes of running requests, `rate` in requests and frames per second."""

    streams: int
    requests: int
    size: int
    rate: float

    @classmethod
    def of(cls, access: Access) -> Bounds:
        return cls(
            access.client_streams, access.client_requests, access.client_mb << 20, float(access.client_per_second)
        )


class Usage(msgspec.Struct):
    """The current usage of one client. `allowance` is the number of requests that the client could make without waiting
    at the time `seen`. `seen` is in monotonic seconds."""

    name: str
    allowance: float
    seen: float
    streams: int = 0
    requests: int = 0
    size: int = 0

    @property
    def is_idle(self) -> bool:
        return not (self.streams or self.requests or self.size)

    def wait(self, now: float, rate: float) -> float:
        """Subtract one request from the allowance and return 0.0. If less than one request is left, return the seconds
        until the next request is allowed. The allowance grows by `rate` each second, and is at most `rate`."""
        self.allowance = min(rate, self.allowance + (now - self.seen) * rate)
        self.seen = now
        if self.allowance >= 1.0:
            self.allowance -= 1.0
            return 0.0
        return (1.0 - self.allowance) / rate


class ClientLimits:
    """The usage of every client, for one event loop. `refused` counts the refusals of each kind."""

    def __init__(self, bounds: Bounds, most: int = _MOST_CLIENTS) -> None:
        """At most `most` idle clients are remembered."""
        self.bounds, self._most = bounds, most
        self.refused: Counter[Kind] = Counter()
        self._clients: OrderedDict[str, Usage] = OrderedDict()

    def usage(self, key: str, name: str, now: float) -> Usage:
        """Return the usage of the client with this key; a client that is not known yet has used nothing. `now` is in
        monotonic seconds."""
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = Usage(name, self.bounds.rate, now)
            if len(self._clients) > self._most:
                self._forget()
        return found

    def request(self, usage: Usage, size: int, now: float) -> None:
        """Begin a request of `size` bytes; call `end` afterwards. Raises ClientLimited beyond a limit."""
        bounds = self.bounds
        if usage.requests >= bounds.requests:
            raise self._refusal("requests", f"{usage.name} has {usage.requests} running requests, the maximum")
        if usage.size and usage.size + size > bounds.size:  # a client's only request may have any size
            raise self._too_many_bytes(usage)
        self._charge(usage, now)
        usage.requests += 1
        usage.size += size

    def hold(self, usage: Usage, size: int) -> None:
        """Add `size` bytes to a running request that began with size 0, before its size was known. Pass the same `size`
        to `end`. Raises ClientLimited beyond the limit of bytes."""
        if usage.size and usage.size + size > self.bounds.size:
            raise self._too_many_bytes(usage)
        usage.size += size

    def end(self, usage: Usage, size: int) -> None:
        """End a request of `size` bytes."""
        usage.requests -= 1
        usage.size -= size

    def stream(self, usage: Usage, now: float) -> None:
        """Begin a stream, which also counts as one request towards the limit per second; call `end_stream` afterwards.

        Raises ClientLimited beyond a limit.
        """
        if usage.streams >= self.bounds.streams:
            raise self._refusal("streams", f"{usage.name} has {usage.streams} streams, the maximum")
        self._charge(usage, now)
        usage.streams += 1

    def end_stream(self, usage: Usage) -> None:
        usage.streams -= 1

    def __len__(self) -> int:
        """Return the number of remembered clients."""
        return len(self._clients)

    def together(self) -> Usage:
        """Return the usage of all clients together."""
        found = Usage("all", 0.0, 0.0)
        for usage in self._clients.values():
            found.streams += usage.streams
            found.requests += usage.requests
            found.size += usage.size
        return found

    def _charge(self, usage: Usage, now: float) -> None:
        if wait := usage.wait(now, self.bounds.rate):
            what = f"{usage.name} makes more than {self.bounds.rate:g} requests a second"
            raise self._refusal("rate", what, wait)

    def _too_many_bytes(self, usage: Usage) -> ClientLimited:
        most = self.bounds.size >> 20
        return self._refusal("bytes", f"{usage.name} would have more than {most} MiB of running requests")

    def _refusal(self, kind: Kind, what: str, seconds: float = _SOON_SECONDS) -> ClientLimited:
        self.refused[kind] += 1
        remedy = f"try again in {seconds:.3g} s, send less at once, or raise access.{_SETTINGS[kind]}"
        return ClientLimited(f"{what}; {remedy}", seconds)

    def _forget(self) -> None:
        """Forget the oldest idle clients. Clients that are not idle need no limit here: each of them has a connection,
        and the number of connections is limited."""
        for key in [key for key, usage in self._clients.items() if usage.is_idle][: self._most // 4]:
            del self._clients[key]


LARGE = 1 << 20  # bytes; smaller messages do not count
_TOTAL, _EACH = 32 << 20, 16 << 20  # bytes of large messages in progress, of all clients and of one
_PER_SECOND = 384 << 20  # bytes; a message counts for at least size / _PER_SECOND seconds, so that others get turns
_REFUSAL_SECONDS = 0.5  # seconds after which a refused client may retry
# A message that takes longer than _SLOW_SECONDS + size / _SLOW_PER_SECOND gives way to others. The messages that fill
# the whole room (_TOTAL) arrive in this time if their clients share a link of 9 Mbit/s.
_SLOW_SECONDS, _SLOW_PER_SECOND = 30.0, 1 << 20
_SLOW_CHECK_SECONDS = 1.0  # seconds between two checks whether another message waits for the room of a slow message


class _Waiter(NamedTuple):
    client: str
    size: int
    turn: asyncio.Future[None]


class LargeMessage:
    """The large message of one call, if the call has one. Its bytes count in the budget from `begin` to `end`."""

    def __init__(self, budget: Budget, peer: str, who: Caller) -> None:
        """`peer` is the connection as gRPC names it. Bytes count for that connection. Over a unix socket the bytes
        count for the caller `who` instead, because all connections over a unix socket have the same name."""
        self._budget, self._client = budget, who.key if peer.startswith("unix:") else peer
        self._size, self._began = 0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.failure: DeadlineExceeded | None = None  # why the message was given up

    async def begin(self, size: int, *, is_patient: bool = True) -> None:
        await self._budget.take(self._client, size, is_patient=is_patient)
        self._size, self._began = size, time.monotonic()

    def expect(self, give_up: Callable[[DeadlineExceeded], object]) -> None:
        """Call `give_up` once, and `end`, if the rest of the message arrives slowly and another message waits for its
        room. Call `arrived` when the message is complete."""
        self._when_short(self._budget.slow_after + self._size / _SLOW_PER_SECOND, partial(self._give_up, give_up))

    def arrived(self) -> None:
        """Record that the message is complete, or that nothing more is expected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def held(self) -> None:
        """Count the complete message no longer once its handler has held it for long and another message waits for its
        room. A client may never read its answers, and its stream then reads no more messages."""
        self._when_short(self._budget.slow_after, self.end)

    def _when_short(self, wait: float, act: Callable[[], None]) -> None:
        """Call `act` after `wait` seconds, or as soon afterwards as another message waits for the room."""
        self._timer = asyncio.get_running_loop().call_later(wait, self._look, act)

    def _look(self, act: Callable[[], None]) -> None:
        if self._budget.is_short(self._client):
            act()
        else:
            self._when_short(_SLOW_CHECK_SECONDS, act)

    def _give_up(self, give_up: Callable[[DeadlineExceeded], object]) -> None:
        seconds = time.monotonic() - self._began
        self.failure = DeadlineExceeded(
            f"a message of {self._size} bytes was incomplete after {seconds:.0f} s, and other large messages wait for"
            f" its room; send it again over a faster link, or send messages of less than {LARGE} bytes"
        )
        self.end()
        give_up(self.failure)

    def end(self) -> None:
        self.arrived()
        if self._size:
            self._budget.give_back(self._client, self._size, time.monotonic() - self._began)
            self._size = 0


class Budget:
    """Limits the bytes of large messages in progress on one event loop: `total` bytes for all clients, `each` bytes for
    one client. If no other message counts towards a limit, that limit admits a message of any size."""

    def __init__(
        self,
        total: int = _TOTAL,
        each: int = _EACH,
        refused_after: float = _REFUSAL_SECONDS,
        slow_after: float = _SLOW_SECONDS,
    ) -> None:
        """`refused_after`: seconds by which a refusal is delayed, to slow down clients that retry at once.
        `slow_after`: seconds that every message may take to arrive, in addition to the time for its size."""
        self.total, self.each, self._refused_after, self.slow_after = total, each, refused_after, slow_after
        self.used = 0
        self._by_client: Counter[str] = Counter()
        self._waiting: deque[_Waiter] = deque()

    async def take(self, client: str, size: int, *, is_patient: bool = True) -> None:
        """Wait until `size` bytes of a client fit; call `give_back` afterwards. If `is_patient` is False, raises
        ClientLimited if other messages wait and more than `total` bytes would then wait."""
        if not self._waiting and self._fits(client, size):
            self._add(client, size)
            return
        if not is_patient and self._waiting and sum(each.size for each in self._waiting) + size > self.total:
            await asyncio.sleep(self._refused_after)
            raise ClientLimited(
                f"too many large requests are in progress; try again in {_REFUSAL_SECONDS:g} s, or send smaller ones",
                _REFUSAL_SECONDS,
            )
        waiter = _Waiter(client, size, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._wake()  # this message may pass messages that wait for their client's limit
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                self._remove(client, size)
            elif waiter in self._waiting:  # `_wake` may have removed the waiter already
                self._waiting.remove(waiter)
            self._wake()
            raise

    def give_back(self, client: str, size: int, seconds: float) -> None:
        """Release the bytes of a message that was in progress for `seconds`. The bytes count for at least `size` /
        `_PER_SECOND` seconds from the message's start, so the bytes may be released later."""
        rest = size / _PER_SECOND - seconds
        if rest > 0:
            asyncio.get_running_loop().call_later(rest, self._end, client, size)
        else:
            self._end(client, size)

    def is_short(self, client: str) -> bool:
        """Whether a message waits for room that the messages of this client hold."""
        return any(each.client == client or not self._exceeds_share(each.client, each.size) for each in self._waiting)

    def _end(self, client: str, size: int) -> None:
        self._remove(client, size)
        self._wake()

    def _wake(self) -> None:
        """Admit waiting messages in order of arrival; skip messages of clients that are at their limit."""
        later: deque[_Waiter] = deque()
        while self._waiting:
            waiter = self._waiting.popleft()
            if waiter.turn.done():
                continue
            if self._fits(waiter.client, waiter.size):
                self._add(waiter.client, waiter.size)
                waiter.turn.set_result(None)
                continue
            later.append(waiter)
            if not self._exceeds_share(waiter.client, waiter.size):  # it waits for `total`, and must not be overtaken
                break
        self._waiting.extendleft(reversed(later))

    def _fits(self, client: str, size: int) -> bool:
        return (not self.used or self.used + size <= self.total) and not self._exceeds_share(client, size)

    def _exceeds_share(self, client: str, size: int) -> bool:
        has = self._by_client[client]
        return has > 0 and has + size > self.each

    def _add(self, client: str, size: int) -> None:
        self.used += size
        self._by_client[client] += size

    def _remove(self, client: str, size: int) -> None:
        self.used -= size
        self._by_client[client] -= size
        if not self._by_client[client]:
            del self._by_client[client]
