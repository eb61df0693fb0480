"""Reads one pipe in the event loop as bytes come, so that who writes to it never waits and nothing piles up."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import IO

_CHUNK = 1 << 16  # bytes at once: other work of the loop comes in between


class Ear:
    """Calls `hear` with each piece. It owns the pipe, and must be made and used in the loop.

    `ended` is done when the pipe was closed at either end, with the error if it was because `hear` raised one.
    """

    def __init__(self, pipe: IO[bytes], hear: Callable[[bytes], None]) -> None:
        self._pipe, self._hear = pipe, hear
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[BaseException | None] = self._loop.create_future()
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(pipe.fileno(), self._read)

    def close(self, error: BaseException | None = None) -> None:
        if not self._pipe.closed:
            self._loop.remove_reader(self._pipe.fileno())
            self._pipe.close()
        if not self.ended.done():
            self.ended.set_result(error)

    def _read(self) -> None:
        try:
            piece = os.read(self._pipe.fileno(), _CHUNK)
            if piece:
                self._hear(piece)
            else:
                self.close()
        except BlockingIOError:  # another reader's wake-up, or none at all
            pass
        except Exception as error:  # it is raised where `ended` is looked at, not lost in the loop
            self.close(error)
