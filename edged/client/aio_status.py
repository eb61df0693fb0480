"""The status that the daemon sent, where grpc.aio loses it.

When the daemon refuses a call while the client is still writing, a write fails, and grpc.aio then puts "Internal error
from Core" in the place of the daemon's status, which has come or is about to come
(https://github.com/grpc/grpc/issues/36066). That happens to one refused stream in four.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeAlias, TypeVar

import grpc
from grpc import aio

from edged.client.status import to_edged
from edged.errors import EdgedError

Value = TypeVar("Value")

_Status: TypeAlias = tuple[grpc.StatusCode, str | None, tuple[tuple[str, str | bytes], ...]]

_STAND_IN = "Internal error from Core"
_GRACE_S = 1.0


class Statuses:
    """Listens to a call from its start and keeps the first status that is not the stand-in."""

    def __init__(self, call: aio.Call) -> None:
        self._real: asyncio.Future[_Status] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._on_status)

    async def error(self, raised: grpc.RpcError, target: str) -> EdgedError:
        """The error for a call that failed with `raised`."""
        try:
            code, details, metadata = await asyncio.wait_for(asyncio.shield(self._real), _GRACE_S)
        except asyncio.TimeoutError:
            code, details, metadata = _said(raised)
        return to_edged(code, details, target, metadata)

    def _on_status(self, call: Any) -> None:
        """Called again whenever the status is replaced."""
        code: grpc.StatusCode | None = _at_once(call.code())
        details: str | None = _at_once(call.details())
        if code is not None and details != _STAND_IN and not self._real.done():
            self._real.set_result((code, details, tuple(_at_once(call.trailing_metadata()) or ())))


def _at_once(answer: Coroutine[Any, Any, Value]) -> Value | None:
    """What a coroutine returns that has nothing to wait for, as those of a call that has a status."""
    try:
        answer.send(None)
    except StopIteration as stop:
        value: Value = stop.value
        return value
    answer.close()
    return None


def _said(raised: grpc.RpcError) -> _Status:
    if isinstance(raised, aio.AioRpcError):
        return raised.code(), raised.details(), tuple(raised.trailing_metadata() or ())
    return grpc.StatusCode.UNKNOWN, str(raised), ()
