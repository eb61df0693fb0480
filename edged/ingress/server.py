"""The gRPC server: which services there are, what they listen on, and their limits."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from edged.control.controller import Controller
from edged.errors import ConfigError
from edged.ingress.address import make_way, tcp_address, unix_path, why_not, why_not_tcp
from edged.ingress.cameras import CameraService
from edged.ingress.inference.service import InferenceService
from edged.ingress.operations import OperationsService
from edged.ingress.publisher import Publisher
from edged.ingress.rest.calls import Calls
from edged.serving.camera import Cameras
from edged.serving.stream import Follows
from edged.serving.trace import Tracing


class Ingress:
    """The server with everything registered; listens once started."""

    def __init__(
        self,
        controller: Controller,
        listen: Iterable[str],
        cameras: Cameras,
        tracing: Tracing,
        tracking: Follows | None = None,
        max_message_mb: int = 256,
        shared_memory_over_tcp: bool = False,
        publisher: Publisher | None = None,
    ) -> None:
        """Clients ask for messages up to INT32_MAX; what is accepted is bounded by the memory of a small box."""
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", max_message_mb << 20),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not a lottery
                (
                    "grpc.keepalive_time_ms",
                    30_000,
                ),  # a client whose network has gone does not keep its cameras for hours
                ("grpc.keepalive_timeout_ms", 10_000),
                # Whatever keepalive a client was given, it is no reason to hang up on it.
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 0),
                ("grpc.http2.max_ping_strikes", 0),
            ]
        )
        self.cameras = CameraService(controller, cameras, tracking, publisher)
        inference = InferenceService(controller, tracing, shared_memory_over_tcp)
        self._streaming = (self.cameras, inference)
        self.calls = Calls(inference.service(), inference.inference)
        services = [self.cameras.service(), self.calls.service, OperationsService(controller, cameras).service()]
        for service in services:
            service.register(self._server)
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.name for service in services]
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server)
        self._names = ["", *names]
        self._sockets: list[Path] = []
        self.addresses = [self._bind(address) for address in listen]

    async def start(self) -> None:
        """Answers from now on."""
        await self._server.start()
        for path in self._sockets:
            path.chmod(0o660)
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace: float) -> None:
        """Refuses new calls, lets running ones end within `grace` seconds, then cancels them."""
        await self._health.enter_graceful_shutdown()
        for each in self._streaming:
            each.stop()
        await self._server.stop(grace)
        for path in self._sockets:
            path.unlink(missing_ok=True)

    def _bind(self, address: str) -> str:
        """Listens on `unix:PATH` or `HOST:PORT` (port 0: any free one); returns the address as clients name it."""
        if address.startswith("unix:"):
            return self._bind_unix(unix_path(address))
        host, port = tcp_address(address)
        target = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{target}:{port}")
        except RuntimeError as error:  # whose words say nothing
            raise ConfigError(f"cannot listen on {address}: {why_not_tcp(host, port)}") from error
        return f"{target}:{bound}"

    def _bind_unix(self, path: Path) -> str:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            make_way(path)
            self._server.add_insecure_port(f"unix:{path}")
        except OSError as error:
            raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; choose another place") from error
        except RuntimeError as error:
            why = why_not(socket.AF_UNIX, str(path)) or "gRPC refused it"
            raise ConfigError(f"cannot listen on {path}: {why}; choose another place") from error
        self._sockets.append(path)
        return f"unix:{path}"
