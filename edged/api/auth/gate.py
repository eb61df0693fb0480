"""The guard before gRPC's methods: the one place where calls are let in, of every kind and service.

What can be decided by the address and the headers is decided before the first message is read, so that nobody can fill
the memory who may not call at all; only a certificate is known no sooner than the call itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import grpc

from edged.api.auth import policy
from edged.api.auth.callers import Caller
from edged.api.auth.guard import Guard
from edged.api.grpc.call_guard import CallGuard, Handler, refusing
from edged.api.grpc.rpc import Method, Service

_AUTHORIZATION = "authorization"
Details: TypeAlias = "grpc.HandlerCallDetails"


class Gate(grpc.GenericRpcHandler):
    """Of the server of one address: every method of the services, as whoever calls may have it."""

    def __init__(self, guard: Guard, address: str, services: Iterable[Service]) -> None:
        """ConfigError for an address that may not be."""
        self._guard, self._address = guard, address
        self._methods = {path: method for service in services for path, method in service.methods.items()}
        self.door = guard.door(address)
        self._generation = guard.generation
        self._usual: dict[str, Handler] = {}  # for who shows nothing, where that is the same for everybody

    def register(self, server: grpc.aio.Server) -> None:
        """Stands before all calls of a server that has not been started."""
        server.add_generic_rpc_handlers((self,))

    def service(self, handler_call_details: Details) -> Handler | None:
        """What answers a call; None for a method that there is not."""
        method = self._methods.get(handler_call_details.method)
        if method is None:
            return None
        shown = _shown(handler_call_details.invocation_metadata)
        if self._generation != self._guard.generation:
            self._generation, self.door = self._guard.generation, self._guard.door(self._address)
            self._usual.clear()
        if shown is not None or not self.door.is_local:
            return self._guarded(method, shown)
        usual = self._usual.get(method.path)
        if usual is None:
            usual = self._usual[method.path] = self._guarded(method, None)
        return usual

    def _guarded(self, method: Method, shown: str | None) -> Handler:
        guard, door = self._guard, self.door

        def by_connection(peer: str, authentication: Mapping[str, Iterable[bytes]]) -> Caller:
            return guard.caller(door, shown, peer, authentication)

        def by_peer(peer: str, _: Mapping[str, Iterable[bytes]]) -> Caller:
            return guard.caller(door, shown, peer)

        if door.asks_certificates:
            return CallGuard(guard, method, by_connection, asks_connection=True).handler()
        # Names and keys may need the peer, which comes with the call; roles do not.
        who = guard.caller(door, shown)
        error = policy.refusal(method.path, who)
        if error is not None:
            return refusing(guard, method.path, by_peer, error)
        if who.key.startswith("host "):
            return CallGuard(guard, method, by_peer).handler()
        return CallGuard(guard, method, lambda peer, authentication: who).handler()


def _shown(metadata: object) -> str | None:
    """The value of the header `authorization`, None where there is none. Of several, all: which counts is not ours to
    guess, and together they are no token."""
    found = [value for key, value in metadata or () if key == _AUTHORIZATION]  # type: ignore[attr-defined]
    return ", ".join(map(str, found)) if found else None
