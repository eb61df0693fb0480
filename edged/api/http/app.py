"""The listener as an ASGI application: one call for each request, whichever server carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from edged.api.http import encodings
from edged.api.http.answering import Answering, failure
from edged.api.http.aside import aside
from edged.api.http.bodies import Bodies, Gone, Held, Receive, TooSlow
from edged.api.http.exchange import Answer, Ask, failed
from edged.errors import ErrorCode, InvalidInput

Scope: TypeAlias = "Mapping[str, Any]"
Send: TypeAlias = "Callable[[Any], Awaitable[None]]"

LONGEST_HEAD = 16 << 10  # bytes
_MOST_QUERIES = 32
_WORTH_PACKING = 1 << 10  # bytes
_STOPPING = "the daemon is stopping; ask again when it is back"


class App:
    """Answers the requests of one listener. `is_unix`: its clients come over a unix socket."""

    def __init__(self, answering: Answering, bodies: Bodies, is_unix: bool) -> None:
        self._answering, self._bodies, self._is_unix = answering, bodies, is_unix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with self._bodies.held() as held:
            try:
                ask = ask_of(scope, self._is_unix)
                answer = self._answering.refusal(ask)
                if answer is None:
                    body = await held.read(receive, ask.headers)
                    encoding = ask.headers.get("content-encoding", "")
                    if encoding:
                        body = await self._unpacked(body, encoding, held)
                    ask = msgspec.structs.replace(ask, body=body)
                    del body  # it goes with its request
                    answer = await _while_connected(receive, self._answering.answer(ask))
            except Gone:
                return
            except TooSlow as slow:
                answer = failed(HTTPStatus.REQUEST_TIMEOUT, ErrorCode.DEADLINE_EXCEEDED, str(slow))
            except asyncio.CancelledError:  # by the server, which is stopping
                answer = failed(HTTPStatus.SERVICE_UNAVAILABLE, ErrorCode.DAEMON_UNAVAILABLE, _STOPPING)
            except Exception as error:
                answer = failure(error)
            await _send(send, answer, dict(scope["headers"]))

    async def _unpacked(self, body: bytes, encoding: str, held: Held) -> bytes:
        limit = min(self._bodies.limit, encodings.MOST)
        held.grow(limit)  # what comes of it is not known before
        most = min(limit, len(body) * encodings.MOST_TIMES)
        found = await aside(most, lambda: encodings.unpacked(body, encoding, limit))
        held.shrink(limit - len(found))
        return found


def ask_of(scope: Scope, is_unix: bool) -> Ask:
    """The head of a request. InvalidInput for one that is too long."""
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
        raise InvalidInput(f"the request's query has more than {_MOST_QUERIES} parts") from None
    path = scope.get("raw_path", b"").decode("latin-1")
    return Ask(scope["method"], path, headers, query, peer=_peer(scope, is_unix))


def _peer(scope: Scope, is_unix: bool) -> str:
    client = scope.get("client")
    if is_unix or not client:
        return "unix:" if is_unix else "ipv4:"
    host, port = client
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


async def _while_connected(receive: Receive, work: Awaitable[Answer]) -> Answer:
    """Does work as long as somebody waits for it; Gone when nobody does any more."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and gone.result()["type"] == "http.disconnect":
            raise Gone
        return await task
    finally:
        task.cancel()
        gone.cancel()


async def _send(send: Send, answer: Answer, asked: Mapping[bytes, bytes]) -> None:
    parts = answer.parts
    headers = [(name.encode(), value.encode("latin-1", "replace")) for name, value in answer.headers]
    encoding = encodings.accepted(asked.get(b"accept-encoding", b"").decode("latin-1"))
    if encoding is not None and answer.size >= _WORTH_PACKING:
        parts = (await aside(answer.size, lambda: encodings.packed(answer.parts, encoding)),)
        headers += [(b"content-encoding", encoding.encode()), (b"vary", b"accept-encoding")]
    if answer.status is not HTTPStatus.NO_CONTENT:
        headers.append((b"content-length", str(sum(map(len, parts))).encode()))
    is_unsure = answer.status >= HTTPStatus.BAD_REQUEST and b"expect" in asked  # whether the body still comes
    if is_unsure or {b"content-length", b"transfer-encoding"} <= asked.keys():  # where a body ends may be disputed
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})
