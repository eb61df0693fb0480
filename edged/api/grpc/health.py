"""grpc.health.v1: of the daemon and its services, which take requests as long as it runs, and of every model by name.

A model is SERVING once an engine of it has answered, and NOT_SERVING while it is loaded, cannot be served or does not
answer any more. One that answers with something amiss (an alarm says what) is SERVING all the same: the protocol has no
word for it. A service that is a model's name no more than a gRPC service's is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from grpc_health.v1 import health_pb2

from edged.api.grpc.rpc import Context, Service
from edged.engines.controller import Controller
from edged.engines.readiness import readiness
from edged.errors import NotFound

NAME = "grpc.health.v1.Health"
_Response = health_pb2.HealthCheckResponse


class HealthService:
    """`names` are the gRPC services there are. Watchers are told by `look`, which whoever changes something calls."""

    def __init__(self, controller: Controller, names: Iterable[str]) -> None:
        self._controller = controller
        self._names = frozenset(("", *names))
        self._is_stopping = False
        self._told = self._statuses()
        self._news = asyncio.Event()

    def service(self) -> Service:
        service = Service(NAME)
        service.unary("Check", health_pb2.HealthCheckRequest, self.check)
        service.feed("Watch", health_pb2.HealthCheckRequest, self.watch)
        return service

    def look(self) -> None:
        """Tells watchers what has changed since the last look."""
        now = self._statuses()
        if now != self._told:
            self._told = now
            self._news.set()
            self._news = asyncio.Event()  # those who waited for the other see it set

    def stop(self) -> None:
        """Nothing takes requests from now on; watchers are told so, and that is all."""
        self._is_stopping = True
        self.look()

    async def check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """NotFound for what is neither a service nor a model."""
        status = self._statuses().get(request.service)
        if status is None:
            raise NotFound(f"there is no service or model {request.service[:80]!r}; see: edged models list")
        return _Response(status=status)

    async def watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """What there is not may come: it is SERVICE_UNKNOWN until then."""
        told = None
        while True:
            news = self._news
            status = self._statuses().get(request.service, _Response.SERVICE_UNKNOWN)
            if status != told:
                told = status
                yield _Response(status=status)
            if self._is_stopping:
                return
            await news.wait()

    def _statuses(self) -> dict[str, int]:
        """Of every service and model. A model that is called as a service is not to be seen."""
        up = _Response.NOT_SERVING if self._is_stopping else _Response.SERVING
        found = {name: self._of_model(name) for name in self._controller.models}
        return found | dict.fromkeys(self._names, up)

    def _of_model(self, name: str) -> int:
        ready = readiness(self._controller.models[name], self._controller.health).is_ready
        status: int = _Response.SERVING if ready and not self._is_stopping else _Response.NOT_SERVING
        return status
