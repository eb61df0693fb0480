"""One address that serves gRPC: its sockets and its connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from edged.api.endpoints.address import listening_sockets, listening_unix, tcp_address, unix_path
from edged.api.grpc.activation import Activation
from edged.api.http2.call import Call
from edged.api.http2.connection import Connection
from edged.api.http2.headers import Status
from edged.api.http2.limits import Limits
from edged.files import NO_DESCRIPTORS

_LOG = logging.getLogger("edged.api")
_BACKLOG = 512
_AT_ONCE = 16  # connections that are accepted before other tasks get their turn
_AGAIN_SECONDS = 0.2  # seconds until the next try if no descriptors are left
_CLOSE_SECONDS = 1.0  # seconds in which cancelled calls must end
_DESCRIPTORS = 8192  # the daemon's soft limit of descriptors
_MOST_CONNECTIONS = 1024  # upper bound of the limit at one address
_FEWEST_CONNECTIONS = 16  # lower bound
_OTHERS = 128  # descriptors for everything else: hosts, children, engines, HTTP, ZeroMQ
_ADDRESSES = 4  # the remaining descriptors are divided among this many addresses


def most_connections(descriptors: int) -> int:
    """Return the limit of connections at one address, if the process may have this number of `descriptors` (negative:
    unlimited). Some descriptors are reserved for other uses."""
    if descriptors < 0:  # unlimited
        return _MOST_CONNECTIONS
    return min(_MOST_CONNECTIONS, max(_FEWEST_CONNECTIONS, (descriptors - _OTHERS) // _ADDRESSES))


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to 8192, or to the hard limit if that is lower: services start with 1024,
    which is for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Listener:
    """One address, which is bound on creation, and served after `start`."""

    def __init__(
        self,
        address: str,
        limits: Limits,
        handle: Callable[[Call], Coroutine[Any, Any, None]],
        *,
        secure: Callable[[], ssl.SSLContext] | None = None,
        is_open: bool = False,
        group: str = "",
        activation: Activation | None = None,
    ) -> None:
        """`address` is `unix:PATH` or `HOST:PORT` (port 0: any free port). `secure` returns the TLS context of the next
        handshake. An address that is not loopback needs `secure`, or `is_open`, which allows other machines to connect
        without TLS. Raises ConfigError.

        `handle` answers a call. `group` is the group that may open a unix socket, by default the daemon's own group.
        `activation` may have a socket that systemd already listens on.
        """
        self._limits, self._handle, self._secure, self._is_open = limits, handle, secure, is_open
        self._most = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._path: Path | None = None  # the socket file, if `leave` must remove it
        self._activation = activation or Activation()
        self._connections: set[Connection] = set()
        self._is_empty = asyncio.Event()  # set when the last connection has ended
        self._calls: set[asyncio.Task[None]] = set()
        self._greetings: set[asyncio.Task[None]] = set()  # handshakes of new connections
        self._is_left = False
        self._taken = address
        self._sockets: list[socket.socket]
        if address.startswith("unix:"):
            self.address, self._sockets = self._bind_unix(address, group)
        else:
            self.address, self._sockets = self._bind(address)

    async def start(self) -> None:
        """Serve from now on."""
        for each in self._sockets:
            self._watch(each)

    def leave(self) -> None:
        """Close the address to new clients; call `stop` afterwards. The path can be reused after this call."""
        if self._is_left:
            return
        self._is_left = True
        for each in self._sockets:
            asyncio.get_running_loop().remove_reader(each)
            each.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._activation.give_back(self._taken)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let running calls end within `grace` seconds, then cancel those that remain."""
        self.leave()
        for task in self._greetings:
            task.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)  # during a handshake, a connection cannot close
        for connection in list(self._connections):
            connection.leave()
        if self._calls and grace > 0:
            await asyncio.wait(self._calls, timeout=grace)
        if self._connections:  # let clients close first, see `Connection.leave`
            self._is_empty.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), self._limits.linger)
        for connection in list(self._connections):
            connection.close()
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _watch(self, listening: socket.socket) -> None:
        if not self._is_left:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept connections; close connections beyond the limit at once."""
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in NO_DESCRIPTORS:
                    loop.remove_reader(listening)
                    loop.call_later(_AGAIN_SECONDS, self._watch, listening)
                    return
                continue  # the client has already disconnected
            if len(self._connections) >= self._most:
                accepted.close()
                continue
            peer = peer_of(address) if accepted.family != socket.AF_UNIX else "unix:"
            connection = Connection(self._limits, self._begin, peer, self._lost)
            self._connections.add(connection)
            greeting = loop.create_task(self._greet(accepted, connection))
            self._greetings.add(greeting)
            greeting.add_done_callback(partial(self._greeted, accepted, connection))

    async def _greet(self, accepted: socket.socket, connection: Connection) -> None:
        """Turn an accepted socket into a connection, after the TLS handshake."""
        accepted.setblocking(False)
        if accepted.family != socket.AF_UNIX:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        options: dict[str, Any] = {}
        if self._secure is not None:
            options = {"ssl": self._secure(), "ssl_handshake_timeout": self._limits.handshake}
        await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, **options)

    def _greeted(self, accepted: socket.socket, connection: Connection, greeting: asyncio.Task[None]) -> None:
        """Close the socket if the handshake failed or was cancelled."""
        self._greetings.discard(greeting)
        error = None if greeting.cancelled() else greeting.exception()
        if error is None and not greeting.cancelled():
            return
        self._connections.discard(connection)
        accepted.close()
        if isinstance(error, OSError):
            _LOG.debug("%s: no connection: %s", connection.peer, error)
        elif error is not None:
            _LOG.error("%s: the connection failed with an unexpected error", connection.peer, exc_info=error)

    def _lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def _begin(self, call: Call) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._handle(call))
        self._calls.add(task)
        task.add_done_callback(partial(self._end, call))
        return task

    def _end(self, call: Call, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        call.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("%s from %s failed with an unexpected error", call.head.path, call.peer, exc_info=error)
        call.finish(Status.CANCELLED if task.cancelled() else Status.INTERNAL, "the call ended without an answer")

    # -- addresses -----------------------------------------------------------------------------------------------------

    def _bind(self, address: str) -> tuple[str, list[socket.socket]]:
        """Listen on HOST:PORT; return the address as clients write it, and the sockets."""
        host, port = tcp_address(address, allow_remote=self._secure is not None or self._is_open)
        sockets = listening_sockets(host, port, _BACKLOG)
        target = f"[{host}]" if ":" in host else host
        secure = "tls:" if self._secure is not None else ""
        return f"{secure}{target}:{sockets[0].getsockname()[1]}", sockets

    def _bind_unix(self, address: str, group: str) -> tuple[str, list[socket.socket]]:
        path = unix_path(address)
        if (passed := self._activation.take_over(address)) is not None:
            return f"unix:{path}", [passed]
        listening = listening_unix(path, _BACKLOG, group)
        self._path = path
        return f"unix:{path}", [listening]


def peer_of(address: tuple[Any, ...]) -> str:
    """Return the other end of a connection as gRPC names it, without percent-encoding. A link-local address includes
    its interface number."""
    host, port = str(address[0]).removeprefix("::ffff:"), address[1]
    if ":" not in host:
        return f"ipv4:{host}:{port}"
    link = f"%{address[3]}" if len(address) > 3 and address[3] else ""
    return f"ipv6:[{host.partition('%')[0]}{link}]:{port}"
