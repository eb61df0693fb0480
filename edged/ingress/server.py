"""The gRPC server: which services there are, what they listen on, and their limits."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from edged.control.controller import Controller
from edged.errors import ConfigError
from edged.ingress.cameras import CameraService
from edged.ingress.open_inference import InferenceService
from edged.ingress.operations import OperationsService
from edged.serving.camera import Cameras
from edged.serving.stream import Follows

# Clients ask for messages up to INT32_MAX; what is really accepted is bounded by the memory of a small box.
_MAX_MESSAGE = 256 << 20


class Ingress:
    """The server with everything registered; listens once started."""

    def __init__(
        self, controller: Controller, listen: Iterable[str], cameras: Cameras, tracking: Follows | None = None
    ) -> None:
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _MAX_MESSAGE),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a second daemon on the same port is an error, not a lottery
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000),
            ]
        )
        self._streaming = (CameraService(controller, cameras, tracking), InferenceService(controller))
        services = [*(each.service() for each in self._streaming), OperationsService(controller, cameras).service()]
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
            return self._bind_unix(Path(address.removeprefix("unix:").removeprefix("//")))
        host, port = tcp_address(address)
        target = f"[{host}]" if ":" in host else host
        try:
            bound = self._server.add_insecure_port(f"{target}:{port}")
        except RuntimeError as error:  # whose words say nothing
            raise ConfigError(f"cannot listen on {address}: {_why_not_tcp(host, port)}") from error
        return f"{target}:{bound}"

    def _bind_unix(self, path: Path) -> str:
        if len(os.fsencode(path)) > 107:
            raise ConfigError(
                f"socket path {path} is longer than the 107 bytes that Linux allows; choose a shorter one"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            make_way(path)
            self._server.add_insecure_port(f"unix:{path}")
        except OSError as error:
            raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; choose another place") from error
        except RuntimeError as error:
            why = _why_not(socket.AF_UNIX, str(path)) or "gRPC refused it"
            raise ConfigError(f"cannot listen on {path}: {why}; choose another place") from error
        self._sockets.append(path)
        return f"unix:{path}"


def tcp_address(address: str) -> tuple[str, int]:
    """Host, an IPv6 address without brackets, and port of `HOST:PORT`. ConfigError where it is not on this machine."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()):
        raise ConfigError(f"listen address {address!r} is neither unix:PATH nor HOST:PORT")
    if len(port) > 5 or int(port) > 65535:
        raise ConfigError(f"listen address {address!r} has no usable port; give one from 0 to 65535")
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    host = host or "localhost"
    if not _is_loopback(host):
        raise ConfigError(f"listen address {address!r} may be reachable from other machines; use localhost:{port}")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any machine
        return False


def make_way(path: Path) -> None:
    """Removes a socket that a killed daemon left. ConfigError when something else is there, or a living daemon."""
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        raise ConfigError(f"{path} exists and is not a socket; remove it or listen elsewhere")
    if _is_answered(path):
        raise ConfigError(f"another daemon listens on {path}; stop it or listen elsewhere")
    path.unlink(missing_ok=True)


def _is_answered(path: Path) -> bool:
    """Whether a living process listens on the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _why_not_tcp(host: str, port: int) -> str:
    """Why gRPC could not listen there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        return f"{host} has no address here: {error.strerror}"
    reasons = [_why_not(family, place) for family, _, _, _, place in found]
    return next(filter(None, reasons), "gRPC refused it")


def _why_not(family: int, place: tuple[Any, ...] | str) -> str:
    """What the system says when it is asked to bind; empty where it does not mind."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return "the port is taken; choose another"
        return error.strerror or str(error)
    return ""
