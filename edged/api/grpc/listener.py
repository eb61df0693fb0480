"""One address that answers gRPC calls, with a server of its own: gRPC's servers take no address once they have started,
nor give one up, and a daemon whose configuration changed must do both while the calls at its other addresses go on."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc

from edged import tasks
from edged.api.endpoints.address import make_way, require_untaken, settle, tcp_address, unix_path, why_not, why_not_tcp
from edged.api.grpc import grpc_limits as edge
from edged.api.grpc.handover import Handover
from edged.errors import ConfigError

_LOG = logging.getLogger("edged.api")
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
        credentials: grpc.ServerCredentials | None = None,
        group: str = "",
        handover: Handover | None = None,
        is_brief: bool = False,
    ) -> None:
        """`unix:PATH` or `HOST:PORT` (port 0: any free one), with `credentials` also of other machines' reach.
        ConfigError where that is impossible. `group` may open the socket, otherwise the daemon's own may. `handover` is
        for a path that systemd listens at: who had connected there is answered too, by a server of their own, which
        `is_brief`: it asks clients to connect anew, which they do here.
        """
        edge.quieten()
        self._credentials, self._group, self._handover = credentials, group, handover
        self._register = register
        self._make = partial(grpc.aio.server, options=edge.options(max_message_mb, is_brief))
        self._path: Path | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._is_stopping = False
        self.address = self._open(address)  # as clients name it
        self._early: Listener | None = None
        if handover is not None:
            target = f"unix:{handover.early}"
            self._early = Listener(target, max_message_mb, register, group=group, is_brief=True)

    async def start(self) -> None:
        """Answers from now on."""
        if self._early is not None:
            await self._early.start()
        await self._begin()
        self._keeper = tasks.keep("keeper of a listener", self._keep)

    async def stop(self, grace: float) -> None:
        """Takes no more calls, lets running ones end within `grace` seconds, then cancels them."""
        self.leave()
        await asyncio.gather(self._server.stop(grace), *([self._early.stop(grace)] if self._early else []))
        if self._keeper is not None:
            await asyncio.gather(self._keeper, return_exceptions=True)

    def leave(self) -> None:
        """Clients that come from now on do not reach it; to be followed by `stop`. What is at the path afterwards is
        somebody else's."""
        if self._is_stopping:
            return
        self._is_stopping = True
        if self._handover is not None:
            self._handover.leave()
        elif self._path is not None:
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
            _LOG.error("gRPC gave up %s; it answers there again%.300s", self.address, why)
            if self._handover is not None:
                self._handover.leave()
            while not self._is_stopping:
                try:
                    self._open(self.address.removeprefix("tls:"))
                    await self._begin()
                    break
                except ConfigError as error:
                    _LOG.error("%s; tried again", error)
                    await asyncio.sleep(_AGAIN_SECONDS)

    async def _begin(self) -> None:
        await self._server.start()
        if self._handover is not None:
            try:
                self._handover.enter()
            except OSError as error:
                raise ConfigError(f"cannot listen on {self._handover.path}: {error.strerror or error}") from error

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
        require_untaken(host, port)
        try:
            if self._credentials is not None:
                return f"tls:{target}:{self._server.add_secure_port(f'{target}:{port}', self._credentials)}"
            bound = self._server.add_insecure_port(f"{target}:{port}")
        except RuntimeError as error:  # whose words say nothing
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
