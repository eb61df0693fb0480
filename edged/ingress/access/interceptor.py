"""The guard before gRPC's handlers: the one place where calls are let in, of every kind and service.

What can be decided by the address and the headers is decided before the first message is read, so that nobody can fill
the memory who may not call at all; only a certificate is known no sooner than the handler has its context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc

from edged.errors import EdgedError
from edged.ingress.access import policy
from edged.ingress.access.callers import Caller
from edged.ingress.access.doors import Door
from edged.ingress.access.guard import Guard
from edged.ingress.access.passage import Handler, Passage
from edged.ingress.ending import end
from edged.ingress.rpc import Context

_AUTHORIZATION = "authorization"


class Interceptor(grpc.aio.ServerInterceptor):
    """Of the server of one address."""

    def __init__(self, guard: Guard, address: str) -> None:
        """ConfigError for an address that may not be."""
        self._guard, self._address = guard, address
        self.door = guard.door(address)
        self._generation = guard.generation
        self._usual: dict[str, Handler] = {}  # for who shows nothing, where that is the same for everybody

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method: str = handler_call_details.method
        shown = _shown(handler_call_details.invocation_metadata)
        if self._generation != self._guard.generation:
            self._generation, self.door = self._guard.generation, self._guard.door(self._address)
            self._usual.clear()
        if shown is None and self.door.is_local:
            usual = self._usual.get(method)
            if usual is not None:
                return usual
            handler = await continuation(handler_call_details)
            if handler is not None:  # there is such a method
                handler = self._usual[method] = self._guarded(handler, method, None)
            return handler
        handler = await continuation(handler_call_details)
        return handler if handler is None else self._guarded(handler, method, shown)

    def _guarded(self, handler: Handler, method: str, shown: str | None) -> Handler:
        guard, door = self._guard, self.door
        if door.asks_certificates:

            def by_connection(context: Context) -> Caller:
                return guard.caller(door, shown, context.peer(), context.auth_context())

            return Passage(guard, method, by_connection, is_open=True).around(handler)
        # Names and keys may need the peer, which comes with the context; roles do not.
        who = guard.caller(door, shown)
        error = policy.refusal(method, who)
        if error is not None:
            return _refusing(guard, method, door, shown, error)
        if who.key.startswith("host "):

            def by_peer(context: Context) -> Caller:
                return guard.caller(door, shown, context.peer())

            return Passage(guard, method, by_peer).around(handler)
        return Passage(guard, method, lambda context: who).around(handler)


def _refusing(guard: Guard, method: str, door: Door, shown: str | None, error: EdgedError) -> Handler:
    """Ends a call before any message of it is read."""

    async def refuse(requests: object, context: Context) -> bytes:
        peer = context.peer()
        guard.turn_away(method, guard.caller(door, shown, peer), peer, error)
        await end(context, error)

    return grpc.stream_unary_rpc_method_handler(cast(Any, refuse))  # a handler of one message would have it read first


def _shown(metadata: object) -> str | None:
    """The value of the header `authorization`, None where there is none. Of several, all: which counts is not ours to
    guess, and together they are no token."""
    found = [value for key, value in metadata or () if key == _AUTHORIZATION]  # type: ignore[attr-defined]
    return ", ".join(map(str, found)) if found else None
