"""The gRPC server: which services there are, what they listen on, and their limits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from edged.control.controller import Controller
from edged.errors import ConfigError
from edged.ingress.cameras import CameraService
from edged.ingress.open_inference import InferenceService
from edged.ingress.operations import OperationsService

_LOOPBACK = ("localhost", "127.", "[::1]", "::1")
# Clients ask for messages up to INT32_MAX; what is really accepted is bounded by the memory of a small box.
_MAX_MESSAGE = 256 << 20


class Ingress:
    """The server with everything registered; listens once started."""

    def __init__(self, controller: Controller, listen: Iterable[str]) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MAX_MESSAGE),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not a lottery
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            ]
        )
        services = [
            CameraService(controller).service(),
            InferenceService(controller).service(),
            OperationsService(controller).service(),
        ]
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
        for socket in self._sockets:
            socket.chmod(0o660)
        for name in self._names:
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self, grace: float) -> None:
        """Refuses new calls, lets running ones end within `grace` seconds, then cancels them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)
        for socket in self._sockets:
            socket.unlink(missing_ok=True)

    def _bind(self, address: str) -> str:
        """Listens on `unix:PATH` or `HOST:PORT` (port 0: any free one); returns the address as clients name it."""
        if address.startswith("unix:"):
            return self._bind_unix(Path(address.removeprefix("unix:").removeprefix("//")))
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal():
            raise ConfigError(f"listen address {address!r} is neither unix:PATH nor HOST:PORT")
        host = host or "localhost"
        if not host.startswith(_LOOPBACK):
            raise ConfigError(f"listen address {address!r} is reachable from other machines; use localhost:{port}")
        try:
            bound = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: the port is taken; choose another") from error
        return f"{host}:{bound}"

    def _bind_unix(self, path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        if len(os.fsencode(path)) > 107:
            raise ConfigError(
                f"socket path {path} is longer than the 107 bytes that Linux allows; choose a shorter one"
            )
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"{path} exists and is not a socket; remove it or listen elsewhere")
        if _is_answered(path):
            raise ConfigError(f"another daemon listens on {path}; stop it or listen elsewhere")
        path.unlink(missing_ok=True)  # left by a daemon that was killed
        try:
            self._server.add_insecure_port(f"unix:{path}")
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {path}: {error}") from error
        self._sockets.append(path)
        return f"unix:{path}"


def _is_answered(path: Path) -> bool:
    """Whether a living process listens on the socket."""
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
