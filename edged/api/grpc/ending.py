"""The one way in which calls end with an error."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import grpc

from edged.api.grpc.status import describe, named

_PROPAGATED_SECONDS = 0.1  # after which an error has certainly left every handler


async def end(context: grpc.aio.ServicerContext[Any, Any], error: Exception) -> NoReturn:
    """Ends a call with the status of an error, and keeps nothing of the call."""
    await abort(context, *describe(error), named(error))


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    code: grpc.StatusCode,
    message: str,
    trailing: tuple[tuple[str, str], ...] = (),
) -> NoReturn:
    """Ends a call with a status, and keeps nothing of the call.

    gRPC keeps what it raises here, and the call is in its traceback, together with all that was sent: many megabytes
    that would stay until the garbage collector comes.
    """
    try:
        await context.abort(code, message, trailing)
    except grpc.aio.AbortError as aborted:
        asyncio.get_running_loop().call_later(_PROPAGATED_SECONDS, _forget, aborted)
        raise
    raise AssertionError("a call that was ended goes on")


def _forget(error: BaseException | None) -> None:
    """Takes the tracebacks from an error and from those that led to it."""
    while error is not None:
        error.__traceback__ = None
        error = error.__context__
