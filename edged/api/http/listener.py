"""The HTTP listener: where it listens, what it is made of, and its life with the daemon."""

from __future__ import annotations

import contextlib
import errno
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from edged import packages
from edged.api.auth.guard import Guard
from edged.api.endpoints.address import make_way, tcp_address, unix_path
from edged.api.grpc.cameras import CameraService
from edged.api.http.access import HttpGuard
from edged.api.http.answering import Answering
from edged.api.http.app import App
from edged.api.http.bodies import Bodies
from edged.api.http.calls import Calls
from edged.config import Http
from edged.errors import ConfigError

if TYPE_CHECKING:
    from edged.api.http.server import Server

_MIB = 1 << 20
_BODIES_AT_ONCE = 4  # of the largest; many more of the usual ones
_BACKLOG = 128


class HttpListener:
    """Listens where the configuration says; nowhere, and with nothing loaded, where that is nowhere."""

    def __init__(self, http: Http, calls: Calls, cameras: CameraService, guard: Guard) -> None:
        self._address = http.listen
        self._limit = http.body_mb * _MIB
        self._answering = Answering(calls, cameras, HttpGuard(guard, http.listen))
        self._server: Server | None = None
        self._path: Path | None = None
        self.addresses: list[str] = []

    async def start(self) -> None:
        """Answers from now on. ConfigError where that is impossible; `stop` then closes what listens already."""
        if not self._address:
            return
        is_unix = self._address.startswith("unix:")
        bodies = Bodies(self._limit, self._limit * _BODIES_AT_ONCE)
        server = _server(App(self._answering, bodies, is_unix))
        sockets = [self._unix(unix_path(self._address))] if is_unix else _tcp(self._address)
        await server.start(sockets)
        self._server = server
        if self._path is not None:
            self.addresses.append(f"http+unix:{self._path}")
            return
        host, port = sockets[0].getsockname()[:2]
        named = "localhost" if self._address.startswith(("localhost:", ":")) else f"[{host}]" if ":" in host else host
        self.addresses.append(f"http://{named}:{port}")

    async def stop(self, grace: float) -> None:
        """Takes no more requests, and lets those under way end within `grace` seconds."""
        if self._server is not None:
            await self._server.stop(grace)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def _unix(self, path: Path) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            make_way(path)
            listening.bind(str(path))
            path.chmod(0o660)
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise ConfigError(f"[http] cannot listen on {path}: {error.strerror or error}; choose another") from error
        except ConfigError:
            listening.close()
            raise
        self._path = path
        return listening


def _server(app: App) -> Server:
    try:
        from edged.api.http.server import Server
    except ModuleNotFoundError as error:
        remedy = packages.install_extra("http")
        raise ConfigError(f"[http] listens only with {error.name} installed: {remedy}") from error
    return Server(app)


def _tcp(address: str) -> list[socket.socket]:
    """Sockets on one port of every loopback address that the host's name has. ConfigError where there is none."""
    host, port = tcp_address(address)
    bound: list[socket.socket] = []
    problem: OSError | None = None
    with contextlib.ExitStack() as undo:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ConfigError(f"[http] cannot listen on {address}: {error.strerror or error}") from error
        for family, kind, _, _, place in found:
            listening = undo.enter_context(socket.socket(family, kind))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listening.bind((place[0], bound[0].getsockname()[1] if bound else port))
                listening.listen(_BACKLOG)
            except OSError as error:
                problem = error
                listening.close()
            else:
                bound.append(listening)
        taken = problem is not None and problem.errno == errno.EADDRINUSE
        if not bound or taken:
            why = "the port is taken" if taken else problem.strerror if problem is not None else "no address"
            raise ConfigError(f"[http] cannot listen on {address}: {why}; choose another")
        undo.pop_all()
    return bound
