"""How much one client may have under way: streams, requests, bytes, and requests a second. Beyond that it is told so,
and when to come again; its streams are only read more slowly."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Literal, TypeAlias

import msgspec

from edged.config.access import Access
from edged.errors import ClientLimited

Kind: TypeAlias = Literal["streams", "requests", "bytes", "rate"]

_MOST_CLIENTS = 4096  # that are remembered while they have nothing under way
_SOON_SECONDS = 0.1  # after which something under way may have ended


class Bounds(msgspec.Struct, frozen=True):
    """Of one client: `size` in bytes of requests, `rate` in requests and frames a second."""

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
    """What one client has under way. `allowance` is how many requests it may make at once, as of `seen`."""

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
        """Takes one request from the allowance, which grows by `rate` a second up to that many; 0.0 where there was
        one, otherwise the seconds until there is, and none is taken."""
        self.allowance = min(rate, self.allowance + (now - self.seen) * rate)
        self.seen = now
        if self.allowance >= 1.0:
            self.allowance -= 1.0
            return 0.0
        return (1.0 - self.allowance) / rate


class ClientLimits:
    """Every client's use, by whom it is counted for. Of one event loop. `refused` counts by kind."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.refused: Counter[Kind] = Counter()
        self._clients: OrderedDict[str, Usage] = OrderedDict()

    def usage(self, key: str, name: str, now: float) -> Usage:
        """A client's, by its key; `now` in monotonic seconds."""
        found = self._clients.get(key)
        if found is None:
            found = self._clients[key] = Usage(name, self.bounds.rate, now)
            if len(self._clients) > _MOST_CLIENTS:
                self._forget()
        return found

    def request(self, usage: Usage, size: int, now: float) -> None:
        """A request of so many bytes begins; `end` follows. ClientLimited where it may not."""
        bounds = self.bounds
        if usage.requests >= bounds.requests:
            raise self._refusal("requests", f"{usage.name} has {usage.requests} requests under way, the most it may")
        if usage.size and usage.size + size > bounds.size:  # one alone is bounded by the size of a message
            most = bounds.size >> 20
            raise self._refusal("bytes", f"{usage.name} would have more than {most} MiB of requests under way")
        wait = usage.wait(now, bounds.rate)
        if wait:
            raise self._refusal("rate", f"{usage.name} makes more than {bounds.rate:g} requests a second", wait)
        usage.requests += 1
        usage.size += size

    def end(self, usage: Usage, size: int) -> None:
        """A request has ended."""
        usage.requests -= 1
        usage.size -= size

    def stream(self, usage: Usage, now: float) -> None:
        """A stream begins, which is one request as well; `end_stream` follows. ClientLimited where it may not."""
        if usage.streams >= self.bounds.streams:
            raise self._refusal("streams", f"{usage.name} has {usage.streams} streams, the most it may")
        wait = usage.wait(now, self.bounds.rate)
        if wait:
            raise self._refusal("rate", f"{usage.name} makes more than {self.bounds.rate:g} requests a second", wait)
        usage.streams += 1

    def end_stream(self, usage: Usage) -> None:
        usage.streams -= 1

    def together(self) -> Usage:
        """What all clients have under way."""
        found = Usage("all", 0.0, 0.0)
        for usage in self._clients.values():
            found.streams += usage.streams
            found.requests += usage.requests
            found.size += usage.size
        return found

    def _refusal(self, kind: Kind, what: str, seconds: float = _SOON_SECONDS) -> ClientLimited:
        self.refused[kind] += 1
        return ClientLimited(f"{what}; try again in {seconds:.3g} s, or ask for less at a time", seconds)

    def _forget(self) -> None:
        """The clients that came first and have nothing under way; those that have cannot be many, being connected."""
        for key in [key for key, usage in self._clients.items() if usage.is_idle][: _MOST_CLIENTS // 4]:
            del self._clients[key]
