"""uvicorn in the daemon's event loop, with limits of time and connections that uvicorn lacks.

Of the maintained servers that run in an existing loop, uvicorn with h11 is the smallest, and is pure Python. aiohttp is
faster with large bodies, but needs eight compiled packages and more than twice the memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, TypeAlias, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

# An ASGI application: https://asgi.readthedocs.io/en/latest/specs/www.html
Application: TypeAlias = "Callable[[Any, Any, Any], Awaitable[None]]"

LONGEST_HEAD = 16 << 10  # bytes of a request's head
_IDLE_SECONDS = 30  # how long a connection may be idle between requests
_FULL = b'{"error":"too many connections; close some and try again","code":"OVERLOADED"}'
_FULL_HEAD = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(_FULL)
)
_MALFORMED = b'{"error":"the request is not HTTP/1.1, or its head is too long","code":"INVALID_REQUEST"}'


class Connection(H11Protocol):
    """A connection that is closed if its client takes too long to send a head or to read a response."""

    head_seconds = 10.0  # from the first byte of a request, or the beginning of a connection, to the end of its head
    unread_seconds = 20.0  # time in which a client must read at least one byte of its response
    most = 256  # limit of connections at a time

    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(_FULL_HEAD + _FULL)
            transport.close()
        else:
            self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.unread_seconds, self._require_progress, self._unwritten())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self._unwritten():
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request, if possible, in the format of all other errors."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            length = (b"content-length", str(len(_MALFORMED)).encode())
            headers = [(b"content-type", b"application/json"), length, (b"connection", b"close")]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for event in (response, h11.Data(data=_MALFORMED), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        """Start or stop the timer of `head_seconds`."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and self._head is not None:
            self._head.cancel()
            self._head = None
        elif not is_answering and self._head is None:
            self._head = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _require_progress(self, before: int) -> None:
        now = self._unwritten()
        if now >= before:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(self.unread_seconds, self._require_progress, now)

    def _unwritten(self) -> int:
        return self.transport.get_write_buffer_size()


class Server(uvicorn.Server):
    """Serves an application on bound sockets, until it is stopped."""

    def __init__(self, app: Application, secure: Callable[[], ssl.SSLContext] | None = None) -> None:
        """`secure` returns the TLS context; None for no TLS."""
        super().__init__(
            uvicorn.Config(
                cast(Any, app),
                http=Connection,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=_IDLE_SECONDS,
                h11_max_incomplete_event_size=LONGEST_HEAD,
            )
        )
        if secure is not None:
            self.config.load()  # loading the configuration later would replace the TLS context
            self.config.ssl = secure()
        self._task: asyncio.Task[None] | None = None
        self._listening = asyncio.Event()

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Start to answer."""
        self._task = asyncio.create_task(self.serve(list(sockets)))
        listening = asyncio.create_task(self._listening.wait())
        await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            self._task.result()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening.set()

    async def stop(self, grace: float) -> None:
        """Accept no more requests; let running requests end within `grace` seconds."""
        if self._task is None:
            return
        self.config.timeout_graceful_shutdown = cast(int, max(grace, 0.01))  # fractions of a second work, too
        self.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.sleep(0)  # let cancelled requests answer their clients
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Do nothing: the daemon has its own signal handlers."""
        yield
