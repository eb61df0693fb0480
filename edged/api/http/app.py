"""The HTTP listener and its ASGI application: one call for each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from edged.api.auth.guard import Guard
from edged.api.endpoints.address import listening_sockets, listening_unix, tcp_address, unix_path
from edged.api.http import bodies
from edged.api.http.bodies import Bodies, Gone, Held, Receive, TooSlow
from edged.api.http.exchange import HttpRequest, HttpResponse, error_response, offload
from edged.api.http.handlers import Calls
from edged.api.http.routes import Dispatcher, failure_response
from edged.api.http.server import LONGEST_HEAD, Server
from edged.api.http.streamed import Streamed
from edged.config import Http
from edged.errors import ErrorCode, InvalidInput

Scope: TypeAlias = "Mapping[str, Any]"
Send: TypeAlias = "Callable[[Any], Awaitable[None]]"

_MOST_QUERIES = 32
_WORTH_PACKING = 1 << 10  # bytes of the smallest answer that is compressed
_STOPPING = "the daemon is stopping; send the request again when it is back"


class App:
    """Answers the requests of one listener. `is_unix`: the clients connect to a unix socket."""

    def __init__(self, dispatcher: Dispatcher, bodies: Bodies, is_unix: bool) -> None:
        self._dispatcher, self._bodies, self._is_unix = dispatcher, bodies, is_unix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with self._bodies.held() as held:
            try:
                request = request_of(scope, self._is_unix)
                answer = self._dispatcher.refusal(request)
                if answer is None:
                    body = await held.read(receive, request.headers)
                    encoding = request.headers.get("content-encoding", "")
                    if encoding:
                        body = await self._unpacked(body, encoding, held)
                    request = msgspec.structs.replace(request, body=body)
                    del body  # only the request should hold the body
                    answer = await _while_connected(receive, self._dispatcher.answer(request))
            except Gone:
                return
            except TooSlow as slow:
                answer = error_response(HTTPStatus.REQUEST_TIMEOUT, ErrorCode.DEADLINE_EXCEEDED, str(slow))
            except asyncio.CancelledError:  # the server is stopping
                answer = error_response(HTTPStatus.SERVICE_UNAVAILABLE, ErrorCode.DAEMON_UNAVAILABLE, _STOPPING)
            except Exception as error:
                answer = failure_response(error)
            if answer.stream is not None:
                await _send_stream(send, receive, answer, answer.stream)
            else:
                await _send(send, answer, dict(scope["headers"]))

    async def _unpacked(self, body: bytes, encoding: str, held: Held) -> bytes:
        limit = min(self._bodies.limit, bodies.MOST)
        held.grow(limit)  # the unpacked size is not known before
        most = min(limit, len(body) * bodies.MOST_TIMES)
        found = await offload(most, lambda: bodies.unpacked(body, encoding, limit))
        held.shrink(limit - len(found))
        return found


def request_of(scope: Scope, is_unix: bool) -> HttpRequest:
    """Return a request without its body. Raises InvalidInput for too long headers or too many query parameters."""
    length = sum(len(name) + len(value) for name, value in scope["headers"])
    if length > LONGEST_HEAD:
        raise InvalidInput(f"the request's headers have {length} bytes; send at most {LONGEST_HEAD}")
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    try:
        query = dict(
            parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True, max_num_fields=_MOST_QUERIES)
        )
    except ValueError:
        raise InvalidInput(f"the request's query has too many parameters; send at most {_MOST_QUERIES}") from None
    path = scope.get("raw_path", b"").decode("latin-1")
    return HttpRequest(scope["method"], path, headers, query, peer=_peer(scope, is_unix))


def _peer(scope: Scope, is_unix: bool) -> str:
    client = scope.get("client")
    if is_unix or not client:
        return "unix:" if is_unix else "ipv4:"
    host, port = client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


async def _while_connected(receive: Receive, work: Awaitable[HttpResponse]) -> HttpResponse:
    """Return the result of `work`. If the client disconnects first, cancel `work` and raise Gone."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and gone.result()["type"] == "http.disconnect":
            raise Gone
        return await task
    finally:
        task.cancel()
        gone.cancel()


async def _send(send: Send, answer: HttpResponse, asked: Mapping[bytes, bytes]) -> None:
    parts = answer.parts
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
    encoding = bodies.accepted(asked.get(b"accept-encoding", b"").decode("latin-1"))
    if encoding is not None and answer.size >= _WORTH_PACKING:
        parts = (await offload(answer.size, lambda: bodies.packed(answer.parts, encoding)),)
        headers += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
    if answer.status is not HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", str(sum(map(len, parts))).encode()))
    is_unsure = answer.status >= HTTPStatus.BAD_REQUEST and b"expect" in asked  # the client may or may not send a body
    if (
        is_unsure or {b"content-length", b"transfer-encoding"} <= asked.keys()
    ):  # proxies may disagree about where the body ends
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})


async def _send_stream(send: Send, receive: Receive, answer: HttpResponse, stream: Streamed) -> None:
    """Send the chunks of a stream as they come. Close the stream at its end, or if the client disconnects."""
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
    gone = asyncio.ensure_future(receive())
    try:
        await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
        while True:
            chunk = asyncio.ensure_future(anext(stream, None))
            await asyncio.wait((chunk, gone), return_when=asyncio.FIRST_COMPLETED)
            if not chunk.done():  # the client has disconnected
                chunk.cancel()
                await asyncio.gather(chunk, return_exceptions=True)
                return
            part = chunk.result()
            if part is None:
                break
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})
    finally:
        gone.cancel()
        await stream.close()


_MIB = 1 << 20
_BODIES_AT_ONCE = 4  # bodies of the largest size that fit into the room for all bodies
_BACKLOG = 128


class HttpListener:
    """Listens on the configured address from `start` until `stop`; `address` is as clients write it."""

    def __init__(self, http: Http, calls: Calls, guard: Guard, is_open: bool = False) -> None:
        """`is_open`: other machines may reach the address."""
        self._listen, self._limit = http.listen, http.body_mb * _MIB
        self._dispatcher, self._is_open = Dispatcher(calls, guard, http.listen), is_open
        self._server: Server | None = None
        self._path: Path | None = None
        self.address = ""

    async def start(self) -> None:
        """Start to answer. Raises ConfigError if the address cannot be used."""
        is_unix = self._listen.startswith("unix:")
        app = App(self._dispatcher, Bodies(self._limit, self._limit * _BODIES_AT_ONCE, "'body_mb' of [http]"), is_unix)
        server = Server(app)
        if is_unix:
            path = unix_path(self._listen)
            sockets, self.address = [listening_unix(path, _BACKLOG, setting="[http]")], f"http+unix:{path}"
            self._path = path
        else:
            sockets = listening_sockets(*tcp_address(self._listen, self._is_open), _BACKLOG, "[http]")
            host, port = sockets[0].getsockname()[:2]
            name = "localhost" if self._listen.startswith(("localhost:", ":")) else f"[{host}]" if ":" in host else host
            self.address = f"http://{name}:{port}"
        await server.start(sockets)
        self._server = server

    async def stop(self, grace: float) -> None:
        """Accept no more requests; let running requests end within `grace` seconds."""
        if self._server is not None:
            await self._server.stop(grace)
        if self._path is not None:
            self._path.unlink(missing_ok=True)
