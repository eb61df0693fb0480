"""grpc.health.v1: the health of the daemon (empty name), of each service, and of each model and pipeline, by name.

A model is SERVING once one of its engines has answered. A model is NOT_SERVING while it is being loaded, if it cannot
be served, or if it stopped answering. A degraded model is SERVING, because the protocol has no such state; an alarm
says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable

from grpc_health.v1 import health_pb2

from edged.api.grpc.rpc import Context, Service
from edged.engines.controller import Controller
from edged.errors import NotFound
from edged.language.model import LanguageState

_Response = health_pb2.HealthCheckResponse


class HealthService:
    """The health service. `names` are the gRPC services. Call `look` after each change of a status."""

    def __init__(self, controller: Controller, names: Iterable[str]) -> None:
        self._controller = controller
        self._names = frozenset(("", *names))
        self._is_stopping = False
        self._known = self._statuses()
        self._news = asyncio.Event()
        self.service = Service(health_pb2.DESCRIPTOR.services_by_name["Health"], self)

    def look(self) -> None:
        """Notify watchers if something changed since the last look."""
        now = self._statuses()
        if now != self._known:
            self._known = now
            self._news.set()
            self._news = asyncio.Event()  # for the next change

    def stop(self) -> None:
        """From now on, report NOT_SERVING for every name."""
        self._is_stopping = True
        self.look()

    async def check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        """Return the status of a service or model. Raises NotFound for any other name."""
        status = self._statuses().get(request.service)
        if status is None:
            raise NotFound(f"service or model {request.service[:80]!r} does not exist; see: edged models list")
        return _Response(status=status)

    async def watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncGenerator[health_pb2.HealthCheckResponse, None]:
        """Yield the status of a name, now and after each change. A name that does not exist yet is SERVICE_UNKNOWN."""
        sent = None
        while True:
            news = self._news
            status = self._statuses().get(request.service, _Response.SERVICE_UNKNOWN)
            if status != sent:
                sent = status
                yield _Response(status=status)
            if self._is_stopping:
                return
            await news.wait()

    def _statuses(self) -> dict[str, int]:
        """Return the status of every service, model and pipeline; if a service and a model have the same name, only the
        service is in the result."""
        up = _Response.NOT_SERVING if self._is_stopping else _Response.SERVING
        controller = self._controller
        found: dict[str, int] = {
            planned.entry.name: up if controller.readiness(planned).is_ready else _Response.NOT_SERVING
            for planned in controller.served()
        }
        for name, language in controller.language.models.items():
            found[name] = up if language.state is LanguageState.READY else _Response.NOT_SERVING
        for name, ready in self._controller.pipelines.readiness(self._controller.health).items():
            found.setdefault(name, up if ready.is_ready else _Response.NOT_SERVING)
        return found | dict.fromkeys(self._names, up)
