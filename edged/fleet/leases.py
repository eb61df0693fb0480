"""Decides which of several boxes with the same hardware and software builds an engine: the box that holds the lease of
the engine. A lease is an object in the bucket.

A box creates the lease, waits a moment, and reads it back. If the store lets a box replace an existing object, the box
that wrote last holds the lease. Sometimes two boxes build the same engine, which is harmless. The holder renews the
lease. A lease that has not changed for `Pace.void_s` is void: no box holds it any more. Each box measures this time
with its own clock, since the clock of another box may be wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from edged.decoding import ready
from edged.errors import EdgedError
from edged.files import NOT_JSON
from edged.fleet.bucket import Bucket

_LARGEST = 4096


class Pace(NamedTuple):
    """Times in seconds. A box reads a new lease back after `settle_s` and renews it every `renew_s`. A lease that has
    not changed for `void_s` is void."""

    settle_s: float = 2.0
    renew_s: float = 30.0
    void_s: float = 120.0


USUAL = Pace()


class Lease(msgspec.Struct, frozen=True):
    """The content of a lease. `holder` is the name of the box that builds, for messages. `nonce` is a random text that
    differs between attempts to acquire the lease. `renewals` is the number of renewals so far."""

    holder: str
    nonce: str
    renewals: int = 0


class Leases:
    """The leases of one bucket, as this box sees them."""

    def __init__(
        self, bucket: Bucket, holder: str, pace: Pace = USUAL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bucket, self._holder, self._pace, self._clock = bucket, holder, pace, clock
        self._seen: dict[str, tuple[Lease, float]] = {}  # by name: the lease, and since when it has not changed
        self._renewing: dict[str, tuple[Lease, asyncio.Task[None]]] = {}

    async def holder(self, name: str) -> str:
        """Return the name of the box that holds a lease, or an empty text if the lease does not exist or is void.
        Raises the errors of `Bucket`."""
        found = await self._read(name)
        if found is None:
            self._seen.pop(name, None)
            return ""
        known, since = self._seen.get(name, (None, 0.0))
        if known != found:
            self._seen[name] = found, self._clock()
            return found.holder or "another box"
        return "" if self._clock() - since >= self._pace.void_s else found.holder or "another box"

    async def take(self, name: str) -> Lease | None:
        """Acquire a lease for which `holder` returned an empty text. Return None if another box was faster. Raises the
        errors of `Bucket`."""
        mine = Lease(self._holder, os.urandom(8).hex())
        data = msgspec.json.encode(mine)
        if name in self._seen:  # the lease exists and is void
            await self._bucket.write(_place(name), data)
        elif not await self._bucket.create(_place(name), data):
            return None
        await asyncio.sleep(self._pace.settle_s)
        found = await self._read(name)
        if found is None or found.nonce != mine.nonce:
            return None
        self._seen.pop(name, None)
        return mine

    def hold(self, name: str, lease: Lease) -> None:
        """Renew a lease regularly from now on, until `release` or `stop` is called."""
        self._renewing[name] = lease, asyncio.get_running_loop().create_task(self._renew(name, lease))

    async def release(self, name: str) -> None:
        """Stop renewing a lease. Delete the lease, unless another box has replaced it. Do nothing if `hold` was not
        called for the lease."""
        lease, renewing = self._renewing.pop(name, (None, None))
        if lease is None or renewing is None:
            return
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(EdgedError):  # a lease that cannot be deleted becomes void
            found = await self._read(name)
            if found is not None and found.nonce == lease.nonce:
                await self._bucket.delete(_place(name))

    def stop(self) -> None:
        """Stop renewing all leases, so that they become void after `Pace.void_s`."""
        for _, renewing in self._renewing.values():
            renewing.cancel()
        self._renewing.clear()

    async def _renew(self, name: str, lease: Lease) -> None:
        for number in range(1, 1_000_000):
            await asyncio.sleep(self._pace.renew_s)
            renewed = msgspec.structs.replace(lease, renewals=number)
            with contextlib.suppress(EdgedError):  # the store may be back at the next renewal
                await self._bucket.write(_place(name), msgspec.json.encode(renewed))

    async def _read(self, name: str) -> Lease | None:
        data = await self._bucket.read(_place(name), _LARGEST)
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=ready(Lease))
        except (*NOT_JSON, ValueError):
            return Lease("", data[:64].hex())  # damaged, or of a newer edged; it becomes void if it does not change
        shown = "".join(letter for letter in found.holder[:40] if letter.isprintable())
        return msgspec.structs.replace(found, holder=shown)


def _place(name: str) -> str:
    return f"leases/{name}.json"
