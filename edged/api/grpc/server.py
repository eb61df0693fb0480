"""The gRPC services, and a listener for each address.

gRPC's servers cannot open or close addresses once started. So each address has a server of its own: a reload opens and
closes some while the calls at others go on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from edged import tasks
from edged.api.auth import policy
from edged.api.auth.guard import Guard
from edged.api.endpoints.address import make_way, require_untaken, settle, tcp_address, unix_path, why_not, why_not_tcp
from edged.api.endpoints.publisher import Publisher
from edged.api.grpc import grpc_limits
from edged.api.grpc.activation import Activation, Handover
from edged.api.grpc.call_guard import GuardedMethods
from edged.api.grpc.cameras import CameraService
from edged.api.grpc.health import HealthService
from edged.api.grpc.operations import OperationsService, Reload
from edged.api.grpc.rpc import Service
from edged.api.http.handlers import Calls
from edged.api.inference.service import InferenceService
from edged.engines.controller import Controller
from edged.errors import ConfigError
from edged.metrics.sources import EventCounts
from edged.proto import POOL
from edged.serving.camera import Cameras
from edged.serving.trace import Tracing
from edged.serving.tracking import Tracking

_LOG = logging.getLogger("edged.api")
_AGAIN_SECONDS = 0.5  # until the next try to listen after a server ended


class Listener:
    """One address. Bound when made, serves once started. `register` adds the services to its server.

    A server that ends by itself is replaced at the same address. grpcio 1.85 ends a server for a single call of a
    method whose name is not UTF-8, by any client; its running calls end, and clients reconnect."""

    def __init__(
        self,
        address: str,
        max_message_mb: int,
        register: Callable[[grpc.aio.Server], None],
        *,
        credentials: grpc.ServerCredentials | None = None,
        group: str = "",
        handover: Handover | None = None,
        is_brief: bool = False,
    ) -> None:
        """`unix:PATH` or `HOST:PORT` (port 0: any free one), beyond loopback only with `credentials`. ConfigError.

        `group` may open the socket, by default the daemon's own group. `handover` is for a path that systemd listens
        at: its early connections are served by a second server that `is_brief`, which asks clients to reconnect.
        """
        grpc_limits.quieten()
        self._credentials, self._group, self._handover = credentials, group, handover
        self._register = register
        self._make = partial(grpc.aio.server, options=grpc_limits.options(max_message_mb, is_brief))
        self._path: Path | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.address = self._open(address)  # as clients name it
        self._early: Listener | None = None
        if handover is not None:
            target = f"unix:{handover.early}"
            self._early = Listener(target, max_message_mb, register, group=group, is_brief=True)

    async def start(self) -> None:
        """Serve from now on."""
        if self._early is not None:
            await self._early.start()
        await self._begin()
        self._keeper = tasks.keep("keeper of a listener", self._keep)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let running ones end within `grace` seconds, then cancel them."""
        self.leave()
        await asyncio.gather(self._server.stop(grace), *([self._early.stop(grace)] if self._early else []))
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    def leave(self) -> None:
        """Close the address to new clients; `stop` follows. The path may be reused afterwards."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._handover is not None:
            self._handover.leave()
        elif self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _keep(self) -> None:
        """Serve again whenever the server has ended by itself. Never cancelled: that would cancel gRPC's server."""
        while True:
            why = ""
            try:
                await self._server.wait_for_termination()
            except Exception as error:
                why = f": {error}"
            if self._is_stopping:
                return
            _LOG.error("gRPC stopped serving %s; starting it again%.300s", self.address, why)
            if self._handover is not None:
                self._handover.leave()
            while not self._is_stopping:
                try:
                    self._open(self.address.removeprefix("tls:"))
                    await self._begin()
                    break
                except ConfigError as error:
                    _LOG.error("%s; trying again", error)
                    await asyncio.sleep(_AGAIN_SECONDS)

    async def _begin(self) -> None:
        await self._server.start()
        if self._handover is not None:
            try:
                self._handover.enter()
            except OSError as error:
                raise ConfigError(f"cannot listen on {self._handover.path}: {error.strerror or error}") from error

    def _open(self, address: str) -> str:
        """Make and bind a server; return its address as clients name it."""
        self._server = self._make()
        self._register(self._server)
        return self._bind(address)

    def _bind(self, address: str) -> str:
        if address.startswith("unix:"):
            return self._bind_unix(unix_path(address))
        host, port = tcp_address(address, allow_remote=self._credentials is not None)
        target = f"[{host}]" if ":" in host else host
        require_untaken(host, port)
        try:
            if self._credentials is not None:
                return f"tls:{target}:{self._server.add_secure_port(f'{target}:{port}', self._credentials)}"
            bound = self._server.add_insecure_port(f"{target}:{port}")
        except RuntimeError as error:  # its text says nothing
            raise ConfigError(f"cannot listen on {address}: {why_not_tcp(host, port)}") from error
        return f"{target}:{bound}"

    def _bind_unix(self, path: Path) -> str:
        bound = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            if self._handover is None:
                make_way(path)
            else:
                bound = unix_path(f"unix:{self._handover.prepare()}")
            self._server.add_insecure_port(f"unix:{bound}")
            settle(bound, self._group)
        except OSError as error:
            raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; choose another place") from error
        except RuntimeError as error:
            why = why_not(socket.AF_UNIX, str(bound)) or "gRPC refused it"
            raise ConfigError(f"cannot listen on {path}: {why}; choose another place") from error
        self._path = path
        return f"unix:{path}"


_ACCESS_LOG = logging.getLogger("edged.access")


class GrpcServers:
    """All services at all addresses; serves once started."""

    def __init__(
        self,
        controller: Controller,
        listen: Iterable[str],
        cameras: Cameras,
        tracing: Tracing,
        tracking: Tracking | None = None,
        max_message_mb: int = 32,
        shared_memory_over_tcp: bool = False,
        publisher: Publisher | None = None,
        *,
        guard: Guard,
        activation: Activation | None = None,
    ) -> None:
        """`activation` has the sockets that systemd listens on already."""
        self._max_message_mb = max_message_mb
        self.guard = guard
        self._activation = activation or Activation()
        self.event_counts = EventCounts(controller.events)
        self.cameras = CameraService(controller, cameras, tracking, publisher)
        self.inference = InferenceService(controller, tracing, shared_memory_over_tcp)
        self._streaming = (self.cameras, self.inference)
        self.calls = Calls(self.inference.service, self.inference.inference, self.cameras)
        self._operations = OperationsService(controller, cameras, self.event_counts)
        self.services = [self.cameras.service, self.inference.service, self._operations.service]
        self._health = HealthService(controller, [service.name for service in self.services])
        self.services.append(self._health.service)
        controller.observers.append(self._health.look)
        controller.concerns.append(guard.alarms)
        for service in self.services:
            guard.register(service.requests)
        self.services.append(reflection_service(service.name for service in self.services))
        self._listeners = {address: self._listener(address) for address in dict.fromkeys(listen)}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def addresses(self) -> list[str]:
        """Its addresses, as clients name them."""
        return [listener.address for listener in self._listeners.values()]

    def offer_reload(self, reload: Reload) -> None:
        """Set how operators reload the configuration."""
        self._operations.reloads = reload

    async def watch(self) -> None:
        """Close connections that send too much, until cancelled."""
        await self.guard.traffic.watch(lambda: self.addresses, self._max_message_mb << 20)

    async def start(self) -> None:
        """Serve from now on."""
        for listener in self._listeners.values():
            await listener.start()
        self._activation.start()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let running ones end within `grace` seconds, then cancel them."""
        self._health.stop()
        for each in self._streaming:
            each.stop()
        self._activation.rest()
        await asyncio.gather(*(listener.stop(grace) for listener in self._listeners.values()), *self._closing)
        await self._activation.close()

    async def open(self, address: str) -> str:
        """Serve one more address, and return it as clients name it. ConfigError."""
        listener = self._listener(address)
        try:
            await listener.start()
        except BaseException:
            await listener.stop(0)
            raise
        self._listeners[address] = listener
        return listener.address

    def close(self, address: str, grace: float) -> None:
        """Refuse new calls at an address; running ones end within `grace` seconds. This does not wait for them: the
        call that caused it may be one."""
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
            _ACCESS_LOG.warning("%s", warning)
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


def reflection_service(names: Iterable[str]) -> Service:
    """grpc.reflection.v1alpha for grpcurl and similar tools: the services of these names, and itself.

    gRPC's own servicer answers. It is registered like every other service, so that a malformed message is its sender's
    error: gRPC would answer UNKNOWN and log a traceback for each.
    """
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        POOL.AddSerializedFile(file.serialized_pb)  # of gRPC's packages, which register them in the default pool
    servicer = reflection.aio.ReflectionServicer([*names, reflection.SERVICE_NAME], POOL)
    handlers = SimpleNamespace(server_reflection_info=servicer.ServerReflectionInfo)
    return Service(reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"], handlers)
