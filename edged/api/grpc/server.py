"""The gRPC services, and the addresses at which they answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from edged.api.auth import policy
from edged.api.auth.guard import Guard
from edged.api.endpoints.publisher import Publisher
from edged.api.grpc.activation import Activation
from edged.api.grpc.call_guard import GuardedMethods
from edged.api.grpc.cameras import CameraService
from edged.api.grpc.health import HealthService
from edged.api.grpc.listener import Listener
from edged.api.grpc.operations import OperationsService, Reload
from edged.api.grpc.reflection import reflection_service
from edged.api.http.calls import Calls
from edged.api.inference.service import InferenceService
from edged.engines.controller import Controller
from edged.metrics.tally import Tally
from edged.serving.camera import Cameras
from edged.serving.stream import Follows
from edged.serving.trace import Tracing

_LOG = logging.getLogger("edged.access")


class Ingress:
    """Every service at every address; answers once started."""

    def __init__(
        self,
        controller: Controller,
        listen: Iterable[str],
        cameras: Cameras,
        tracing: Tracing,
        tracking: Follows | None = None,
        max_message_mb: int = 32,
        shared_memory_over_tcp: bool = False,
        publisher: Publisher | None = None,
        *,
        guard: Guard,
        activation: Activation | None = None,
    ) -> None:
        """`activation` has the sockets that systemd listens at already."""
        self._max_message_mb = max_message_mb
        self.guard = guard
        self._activation = activation or Activation()
        self.tally = Tally(controller.events)
        self.cameras = CameraService(controller, cameras, tracking, publisher)
        self.inference = InferenceService(controller, tracing, shared_memory_over_tcp)
        self._streaming = (self.cameras, self.inference)
        self.calls = Calls(self.inference.service(), self.inference.inference)
        self._operations = OperationsService(controller, cameras, self.tally)
        self.services = [self.cameras.service(), self.calls.service, self._operations.service()]
        self._health = HealthService(controller, [service.name for service in self.services])
        self.services.append(self._health.service())
        controller.observers.append(self._health.look)
        controller.concerns.append(guard.alarms)
        for service in self.services:
            guard.knows(service.requests)
        self.services.append(reflection_service(service.name for service in self.services))
        self._listeners = {address: self._listener(address) for address in dict.fromkeys(listen)}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def addresses(self) -> list[str]:
        """Where it listens, as clients name it."""
        return [listener.address for listener in self._listeners.values()]

    def offer_reload(self, reload: Reload) -> None:
        """Operators may have the configuration read again, by this."""
        self._operations.reloads = reload

    async def watch(self) -> None:
        """Sees to connections that send too much, until cancelled."""
        await self.guard.arrivals.watch(lambda: self.addresses, self._max_message_mb << 20)

    async def start(self) -> None:
        """Answers from now on."""
        for listener in self._listeners.values():
            await listener.start()
        self._activation.start()

    async def stop(self, grace: float) -> None:
        """Refuses new calls, lets running ones end within `grace` seconds, then cancels them."""
        self._health.stop()
        for each in self._streaming:
            each.stop()
        self._activation.rest()
        await asyncio.gather(*(listener.stop(grace) for listener in self._listeners.values()), *self._closing)
        await self._activation.close()

    async def open(self, address: str) -> str:
        """Answers at one more address; which it is. ConfigError where that is impossible."""
        listener = self._listener(address)
        try:
            await listener.start()
        except BaseException:
            await listener.stop(0)
            raise
        self._listeners[address] = listener
        return listener.address

    def close(self, address: str, grace: float) -> None:
        """Takes no more calls at an address. Those under way end within `grace` seconds, which nobody waits for: the
        one that asked for this may be among them."""
        listener = self._listeners.pop(address)
        listener.leave()
        self._activation.turn_away()
        closing = asyncio.get_running_loop().create_task(listener.stop(grace))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _listener(self, address: str) -> Listener:
        gate = GuardedMethods(self.guard, address, self.services)
        listener, certificate = gate.listener, self.guard.certificate
        if warning := policy.listener_warning(listener):
            _LOG.warning("%s", warning)
        return Listener(
            address,
            self._max_message_mb,
            gate.register,
            credentials=certificate.credentials(listener.asks_certificates)
            if certificate and listener.has_tls
            else None,
            group=listener.group,
            handover=self._activation.at(address),
        )
