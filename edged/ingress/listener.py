"""One address that answers gRPC calls, with a server of its own: gRPC's servers take no address once they have started,
nor give one up, and a daemon whose configuration changed must do both while the calls at its other addresses go on."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import grpc

from edged.errors import ConfigError
from edged.ingress import edge
from edged.ingress.access.sockets import settle
from edged.ingress.address import make_way, tcp_address, unix_path, why_not, why_not_tcp

_LOG = logging.getLogger("edged.ingress")
_AGAIN_SECONDS = 0.5  # until another try to listen where a server has ended


class Listener:
    """Bound when it is made, answers once started. `register` adds the services to its server.

    A server that ends by itself is followed by another at the same address. grpcio 1.85 ends one for a single call of a
    method whose name is no UTF-8, whoever makes it; what was under way there ends, and clients connect anew.
    """

    def __init__(
        self,
        address: str,
        max_message_mb: int,
        register: Callable[[grpc.aio.Server], None],
        *,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        credentials: grpc.ServerCredentials | None = None,
        group: str = "",
    ) -> None:
        """`unix:PATH` or `HOST:PORT` (port 0: any free one), with `credentials` also of other machines' reach.
        ConfigError where that is impossible. `interceptors` see every call; `group` may open the socket, otherwise the
        daemon's own may.
        """
        edge.quieten()
        self._credentials, self._group = credentials, group
        self._register = register
        self._make = partial(grpc.aio.server, interceptors=interceptors, options=edge.options(max_message_mb))
        self._path: Path | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.address = self._open(address)  # as clients name it

    async def start(self) -> None:
        """Answers from now on."""
        await self._server.start()
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self, grace: float) -> None:
        """Takes no more calls, lets running ones end within `grace` seconds, then cancels them."""
        self._is_stopping = True
        await self._server.stop(grace)
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _keep(self) -> None:
        """Answers again whenever the server has ended by itself. Never cancelled: gRPC's server would be with it."""
        while True:
            why = ""
            try:
                await self._server.wait_for_termination()
            except Exception as error:
                why = f": {error}"
            if self._is_stopping:
                return
            _LOG.error("gRPC gave up %s; it answers there anew%.300s", self.address, why)
            while not self._is_stopping:
                try:
                    self._open(self.address.removeprefix("tls:"))
                    await self._server.start()
                    break
                except ConfigError as error:
                    _LOG.error("%s; tried again", error)
                    await asyncio.sleep(_AGAIN_SECONDS)

    def _open(self, address: str) -> str:
        """A server that is bound; its address as clients name it."""
        self._server = self._make()
        self._register(self._server)
        return self._bind(address)

    def _bind(self, address: str) -> str:
        if address.startswith("unix:"):
            return self._bind_unix(unix_path(address))
        host, port = tcp_address(address, allow_remote=self._credentials is not None)
        target = f"[{host}]" if ":" in host else host
        try:
            if self._credentials is not None:
                return f"tls:{target}:{self._server.add_secure_port(f'{target}:{port}', self._credentials)}"
            bound = self._server.add_insecure_port(f"{target}:{port}")
        except RuntimeError as error:  # whose words say nothing
            raise ConfigError(f"cannot listen on {address}: {why_not_tcp(host, port)}") from error
        return f"{target}:{bound}"

    def _bind_unix(self, path: Path) -> str:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
            make_way(path)
            self._server.add_insecure_port(f"unix:{path}")
            settle(path, self._group)
        except OSError as error:
            raise ConfigError(f"cannot listen on {path}: {error.strerror or error}; choose another place") from error
        except RuntimeError as error:
            why = why_not(socket.AF_UNIX, str(path)) or "gRPC refused it"
            raise ConfigError(f"cannot listen on {path}: {why}; choose another place") from error
        self._path = path
        return f"unix:{path}"
