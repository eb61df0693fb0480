"""The gRPC services, and a listener for each address. A reload opens and closes listeners; calls at other addresses
continue."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any

from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from edged.api.auth import policy
from edged.api.auth.guard import Guard
from edged.api.endpoints.publisher import Publisher
from edged.api.grpc.activation import Activation
from edged.api.grpc.call_guard import CallGuard
from edged.api.grpc.cameras import CameraService
from edged.api.grpc.health import HealthService
from edged.api.grpc.listener import Listener
from edged.api.grpc.operations import OperationsService, Reload
from edged.api.grpc.rpc import Context, Service
from edged.api.http.handlers import Calls
from edged.api.http2.limits import Limits
from edged.api.inference.service import InferenceService
from edged.api.language.service import LanguageService
from edged.cameras.supervisor import CameraSupervisor
from edged.engines.controller import Controller
from edged.metrics.sources import EventCounts
from edged.proto import POOL
from edged.serving.camera import Cameras
from edged.serving.trace import Tracing

_ACCESS_LOG = logging.getLogger("edged.access")


class GrpcServers:
    """All gRPC services at all addresses. The services answer after `start`."""

    def __init__(
        self,
        controller: Controller,
        listen: Iterable[str],
        cameras: Cameras,
        supervisor: CameraSupervisor,
        tracing: Tracing,
        max_message_mb: int,
        shared_memory_over_tcp: bool,
        publisher: Publisher,
        guard: Guard,
        activation: Activation | None,
    ) -> None:
        """`activation` has the sockets that systemd already listens on."""
        self._limits = Limits(max_message=max_message_mb << 20)
        self.guard, self.supervisor = guard, supervisor
        self._activation = activation or Activation()
        self.event_counts = EventCounts(controller.events)
        self.cameras = CameraService(controller, cameras, controller.tracking, publisher)
        self.language = LanguageService(controller)
        self.inference = InferenceService(controller, tracing, shared_memory_over_tcp, self.language)
        self._streaming = (self.cameras, self.inference)
        self.calls = Calls(self.inference.service, self.inference.inference, self.cameras, self.language)
        self.operations = OperationsService(controller, cameras, supervisor, self.event_counts)
        self.services = [
            *(self.cameras.service, self.inference.service, self.operations.service),
            self.language.service,
        ]
        self._health = HealthService(controller, [service.name for service in self.services])
        self.services.append(self._health.service)
        controller.observers.append(self._health.look)
        controller.concerns += [guard.alarms, supervisor.alarms]
        for service in self.services:
            guard.register(service.requests)
        self.services.append(reflection_service(service.name for service in self.services))
        self._listeners = {address: self._listener(address) for address in dict.fromkeys(listen)}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def addresses(self) -> list[str]:
        """The addresses that are served, as clients write them."""
        return [listener.address for listener in self._listeners.values()]

    def offer_reload(self, reload: Reload) -> None:
        """Set the function that reloads the configuration for operators."""
        self.operations.reloads = reload

    async def start(self) -> None:
        """Serve from now on."""
        for listener in self._listeners.values():
            await listener.start()
        self._activation.start()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let running calls end within `grace` seconds, then cancel those that remain."""
        self._health.stop()
        for each in self._streaming:
            each.stop()
        self._activation.rest()
        await asyncio.gather(*(listener.stop(grace) for listener in self._listeners.values()), *self._closing)
        self._activation.close()

    async def open(self, address: str) -> str:
        """Serve one more address, and return the address as clients write it. Raises ConfigError."""
        listener = self._listener(address)
        try:
            await listener.start()
        except BaseException:
            await listener.stop(0)
            raise
        self._listeners[address] = listener
        return listener.address

    def close(self, address: str, grace: float) -> None:
        """Refuse new calls at an address; running calls may end within `grace` seconds. This method does not wait for
        these calls, since the call that requested the reload can be one of them."""
        listener = self._listeners.pop(address)
        listener.leave()
        self._activation.turn_away()
        closing = asyncio.get_running_loop().create_task(listener.stop(grace))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _listener(self, address: str) -> Listener:
        guard = CallGuard(self.guard, address, self.services)
        listener, certificate = guard.listener, self.guard.certificate
        if warning := policy.listener_warning(listener):
            _ACCESS_LOG.warning("%s", warning)
        secure = partial(certificate.context, listener.asks_certificates) if certificate and listener.has_tls else None
        return Listener(
            *(address, self._limits, guard.run),
            secure=secure,
            is_open=not listener.is_local,
            group=listener.group,
            activation=self._activation,
        )


_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


def reflection_service(names: Iterable[str]) -> Service:
    """Return the service grpc.reflection.v1alpha: tools such as grpcurl learn the services `names` from it."""
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)  # gRPC's packages register these in the default pool only
    return Service(_REFLECTION, _Reflection((*names, _REFLECTION.full_name)))


class _Reflection:
    """Answers with gRPC's own servicer. The first call imports gRPC's server library, which the servicer needs."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    async def server_reflection_info(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        module = await asyncio.to_thread(importlib.import_module, "grpc_reflection.v1alpha.reflection")
        answers = module.aio.ReflectionServicer(self._names, POOL).ServerReflectionInfo(requests, context)
        async with aclosing(answers):
            async for answer in answers:
                yield answer
