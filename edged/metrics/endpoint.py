"""HTTP/1.1 listener for `GET /metrics`: one request per connection, few connections, a short time limit.

It shares the event loop with all other parts of the daemon. Therefore it disconnects a slow client.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

from edged.api.endpoints.address import listening_unix, tcp_address, unix_path
from edged.api.http.exchange import web_page_refusal
from edged.errors import ConfigError

_LOG = logging.getLogger("edged.metrics")
_HEAD_BYTES = 8192
_PATH = "/metrics"

# Returns the text of a scrape and its content type. The arguments are the `Accept` header and whether to compress.
Scrape = Callable[[str, bool], Awaitable[tuple[bytes, str]]]


class Endpoint:
    """Listens on `HOST:PORT` or on `unix:PATH`."""

    def __init__(
        self, listen: str, scrape: Scrape, *, is_open: bool = False, max_connections: int = 8, seconds: float = 10.0
    ) -> None:
        """`is_open`: other machines may reach the address. `seconds` is the time limit of a whole connection."""
        self._listen, self._scrape, self._is_open = listen, scrape, is_open
        self._max_connections, self._seconds = max_connections, seconds
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Start to listen, and return the URL. Raises ConfigError if the address cannot be used."""
        try:
            if self._listen.startswith("unix:"):
                path = unix_path(self._listen)
                listening = listening_unix(path, self._max_connections, setting="[metrics]")
                self._path = path
                self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=_HEAD_BYTES)
                return f"http+unix:{path}"
            host, port = tcp_address(self._listen, self._is_open)
            self._server = await asyncio.start_server(self._connected, host, port, limit=_HEAD_BYTES)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE  # asyncio's own message contains the address as a tuple
            why = "the port is in use" if taken else error.strerror or str(error)
            raise ConfigError(f"[metrics] cannot listen on {self._listen}: {why}; choose another address") from error
        bound = self._server.sockets[0].getsockname()[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{bound}{_PATH}"

    async def stop(self, grace: float) -> None:
        """Accept no more scrapes. Wait up to `grace` seconds for running scrapes, and cancel the rest."""
        if self._server is not None:
            self._server.close()
        if self._connections:
            await asyncio.wait(self._connections, timeout=grace)
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._connections) >= self._max_connections:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            await asyncio.wait_for(self._converse(reader, writer), self._seconds)
        except (
            OSError,
            asyncio.TimeoutError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
            asyncio.CancelledError,
        ):
            writer.transport.abort()
        finally:
            self._connections.discard(task)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(await self._answer(head.decode("latin-1")))
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, head: str) -> bytes:
        request, *fields = head.split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        peer = "unix:" if self._path is not None else ""
        if why := web_page_refusal(headers, peer, any_host=self._is_open):
            return _response(HTTPStatus.FORBIDDEN, f"{why}\n".encode())
        method, _, rest = request.partition(" ")
        target, _, version = rest.partition(" ")
        if not version.startswith("HTTP/1."):
            return _response(HTTPStatus.BAD_REQUEST, b"not an HTTP/1 request\n")
        if target.partition("?")[0] != _PATH:
            return _response(HTTPStatus.NOT_FOUND, f"not found; the only path is {_PATH}\n".encode())
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"method not allowed; use GET\n", "Allow: GET\r\n")
        compressed = "gzip" in headers.get("accept-encoding", "").lower()
        try:
            text, kind = await self._scrape(headers.get("accept", ""), compressed)
        except Exception:
            _LOG.exception("metrics scrape failed with an unexpected error")
            return _response(HTTPStatus.INTERNAL_SERVER_ERROR, b"scrape failed; see the daemon's log\n")
        more = f"Content-Type: {kind}\r\nVary: Accept-Encoding\r\n" + (
            "Content-Encoding: gzip\r\n" if compressed else ""
        )
        return _response(HTTPStatus.OK, text, more)


def _response(status: HTTPStatus, body: bytes, more: str = "") -> bytes:
    lines = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{more}\r\n"
    return lines.encode("latin-1") + body
