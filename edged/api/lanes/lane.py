"""A way in or out that can be opened anew with another setting while everything else goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from edged.errors import ConfigError

Setting = TypeVar("Setting")

# ZeroMQ closes sockets, and removes their files, in a thread of its own: what is opened too early loses its file.
_PAUSE_SECONDS = 0.3
_TRIES = 5  # a port may be taken for a moment longer


@dataclass(frozen=True)
class Opened:
    """What listens. `close` takes nothing more, and lets what came end within so many seconds."""

    addresses: tuple[str, ...]
    close: Callable[[float], Awaitable[None]]


class Lane(Generic[Setting]):
    """Closed until `start`. `open` makes what listens with a setting, None where that says to listen nowhere; it raises
    ConfigError, and leaves nothing open, where it cannot listen."""

    def __init__(self, setting: Setting, open: Callable[[Setting], Awaitable[Opened | None]]) -> None:
        self._setting, self._open = setting, open
        self._opened: Opened | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens."""
        return self._opened.addresses if self._opened is not None else ()

    async def start(self) -> None:
        """Listens, where it is to. ConfigError where that is impossible."""
        self._opened = await self._open(self._setting)

    async def stop(self, grace: float) -> None:
        """Takes nothing more, and lets what came end within `grace` seconds."""
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close(grace)

    async def change(self, setting: Setting, grace: float) -> None:
        """Listens with another setting. ConfigError where that is impossible: then it listens as before."""
        was_open = self._opened is not None
        await self.stop(grace)
        if was_open:
            await asyncio.sleep(_PAUSE_SECONDS)
        try:
            self._opened = await self._again(setting, _TRIES if was_open else 1)
        except ConfigError:
            self._opened = await self._again(self._setting, _TRIES)
            raise
        self._setting = setting

    async def _again(self, setting: Setting, tries: int) -> Opened | None:
        for _ in range(tries - 1):
            try:
                return await self._open(setting)
            except ConfigError:
                await asyncio.sleep(_PAUSE_SECONDS)
        return await self._open(setting)
