"""Response bodies that are sent while a task makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from edged.api.grpc.status import describe, error_code

Send: TypeAlias = "Callable[[bytes], Awaitable[None]]"

_MOST_WAITING = 32  # limit of chunks that the client has not read; then the work waits


class Streamed:
    """An iterator over the chunks that a task makes. Call `begin` first. Always call `close` at the end."""

    def __init__(self, work: Callable[[Send], Awaitable[None]], failed: Callable[[str, str], bytes]) -> None:
        """`work` calls its argument with each chunk. If the work fails after its first chunk, `failed` makes the last
        chunk from the error's message and code."""
        self._failed = failed
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self._first: bytes | None = None
        self._is_over = False
        self._task = asyncio.ensure_future(self._run(work))

    async def begin(self) -> None:
        """Wait for the first chunk. Raises the error of the work if the work fails before its first chunk."""
        first = asyncio.ensure_future(self._chunks.get())
        try:
            await asyncio.wait((first, self._task), return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                self._task.result()
            self._first = await first
        except BaseException:
            first.cancel()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            raise

    def __aiter__(self) -> Streamed:
        return self

    async def __anext__(self) -> bytes:
        chunk, self._first = self._first, None
        if chunk is None and not self._is_over:
            chunk = await self._chunks.get()
        if chunk is None:
            self._is_over = True
            raise StopAsyncIteration
        return chunk

    async def close(self) -> None:
        """End the work."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self, work: Callable[[Send], Awaitable[None]]) -> None:
        has_begun = False

        async def send(chunk: bytes) -> None:
            nonlocal has_begun
            has_begun = True
            await self._chunks.put(chunk)

        try:
            await work(send)
        except Exception as error:
            if not has_begun:
                raise
            _, message = describe(error)
            await self._chunks.put(self._failed(message, error_code(error).value))
        await self._chunks.put(None)
