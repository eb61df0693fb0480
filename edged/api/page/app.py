"""The page's ASGI application: its files, the state of the box, pictures, and the commands of the page's user.

A request for the box's state or for a command runs as a call of a method of `edged.v1.Operations`, and needs the role
of that method. A browser sends a token in a cookie that scripts cannot read and that other sites cannot use (HttpOnly,
SameSite=Strict).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message

from edged.api.auth.guard import Guard
from edged.api.auth.policy import Caller
from edged.api.grpc.operations import OperationsService
from edged.api.grpc.rpc import Context
from edged.api.http.app import Scope, Send, request_of
from edged.api.http.bodies import Bodies, Gone, Receive, TooSlow
from edged.api.http.call_scope import call_scope
from edged.api.http.exchange import (
    Headers,
    HttpRequest,
    HttpResponse,
    error_response,
    json_response,
    message_fields,
    parse_json,
    web_page_refusal,
)
from edged.api.http.routes import failure_response
from edged.api.page.feed import Feed
from edged.api.page.files import PageFiles
from edged.api.report.page import POLICY
from edged.errors import ErrorCode, InvalidInput, NotFound, Unauthenticated
from edged.proto import operations_pb2 as pb

OPERATIONS: Final = "/edged.v1.Operations/"
COOKIE: Final = "edged-token"
_COOKIE_SECONDS = 30 * 86400
_BOUNDARY = b"edged-picture"
_STILL_SECONDS = 5.0  # longest wait for one picture of a camera
_MOST_BODY = 1 << 20  # limit of a request without a file, in bytes
_MOST_WIDTH = 3840
_IDLE_SECONDS = 20.0  # time in which the next piece of a file must arrive

# Commands whose request is one small message.
COMMANDS: Final[dict[str, tuple[type[Message], type[Message]]]] = {
    "AddCamera": (pb.AddCameraRequest, pb.CameraStatus),
    "SetCamera": (pb.SetCameraRequest, pb.CameraStatus),
    "RemoveCamera": (pb.RemoveCameraRequest, pb.RemoveCameraResponse),
    "RemoveModel": (pb.RemoveModelRequest, pb.RemoveModelResponse),
}
_CALL = re.compile(r"/call/([A-Za-z]+)")
_STILL = re.compile(r"/cameras/([^/]+)/still")
_REPORT = re.compile(r"/engines/([0-9a-f]+)/report")
_VIDEO = re.compile(r"/cameras/([^/]+)/video")
_MODEL = re.compile(r"/(models|try)/([^/]+)")

_ALWAYS: Headers = (
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
)


class PageApp:
    """Answers the requests of the page's listener at `address`."""

    def __init__(self, guard: Guard, address: str, feed: Feed, operations: OperationsService, files: PageFiles) -> None:
        self._guard, self._address, self._feed, self._operations = guard, address, feed, operations
        self._files, self._bodies = files, Bodies(_MOST_BODY, 16 * _MOST_BODY)
        self._is_secure = guard.listener(address).has_tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        has_begun = False

        async def begin(event: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(event)

        try:
            request = request_of(scope, False)
            answer = await self._answer(request, receive, begin)
        except Gone:
            return
        except TooSlow as slow:
            answer = error_response(HTTPStatus.REQUEST_TIMEOUT, ErrorCode.DEADLINE_EXCEEDED, str(slow))
        except Exception as error:
            answer = failure_response(error)
        if has_begun and answer is not None:  # a caller lost its role; the browser learns why when it asks again
            await send({"type": "http.response.body"})
        elif answer is not None:
            await _send(send, answer)

    async def _answer(self, request: HttpRequest, receive: Receive, send: Send) -> HttpResponse | None:
        """Return the response; None if a stream was already sent."""
        why = self._refusal(request)
        if why:
            return error_response(HTTPStatus.FORBIDDEN, ErrorCode.PERMISSION_DENIED, why)
        if request.method in ("GET", "HEAD"):
            file = self._files.find(request.path, request.headers.get("if-none-match", ""))
            return file if file is not None else await self._get(request, receive, send)
        if request.method != "POST":
            header = (("allow", "GET, HEAD, POST"),)
            return error_response(
                HTTPStatus.METHOD_NOT_ALLOWED, ErrorCode.UNSUPPORTED, "method not allowed; use GET or POST", header
            )
        return await self._post(request, receive)

    def _refusal(self, request: HttpRequest) -> str:
        """Return why a request is refused because it may come from a page of another site; empty if the request is
        allowed."""
        why = web_page_refusal(request.headers, request.peer, any_host=self._is_secure)
        if why is None and request.method == "POST" and "origin" not in request.headers:
            return "a command without the header 'Origin' is refused; set the header to this page's address"
        return why or ""

    def _caller(self, request: HttpRequest) -> Caller:
        """Return the caller, from the header `authorization` or the cookie."""
        shown = request.headers.get("authorization") or _bearer(request.headers.get("cookie", ""))
        return self._guard.caller(self._guard.listener(self._address), shown, request.peer)

    @contextlib.asynccontextmanager
    async def _call(
        self, method: str, request: HttpRequest, size: int = 0, *, is_stream: bool = False, **about: str
    ) -> AsyncGenerator[None, None]:
        """Open the context in which a call of a method of Operations runs. Raises Unauthenticated, Forbidden or
        ClientLimited."""
        who, rpc = self._caller(request), OPERATIONS + method
        self._guard.require_allowed(rpc, who, request.peer)
        async with call_scope(self._guard, rpc, who, request.peer, size, about, is_stream=is_stream):
            yield

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _get(self, request: HttpRequest, receive: Receive, send: Send) -> HttpResponse | None:
        if request.path == "/session":
            return self._session(request)
        if request.path == "/events":
            async with self._call("GetLoad", request, is_stream=True):
                return await self._stream(receive, send, "text/event-stream", self._events())
        if match := _STILL.fullmatch(request.path):
            async with self._call("WatchPictures", request):
                return await self._still(unquote(match[1]), request)
        if match := _VIDEO.fullmatch(request.path):
            async with self._call("WatchPictures", request, is_stream=True):
                pictures = _pictures(unquote(match[1]), request)
                kind = f"multipart/x-mixed-replace; boundary={_BOUNDARY.decode()}"
                return await self._stream(receive, send, kind, self._video(pictures))
        if match := _REPORT.fullmatch(request.path):
            async with self._call("EngineReport", request, engine=match[1][:200]):
                return await self._report(match[1], request)
        raise NotFound(f"path {request.path[:100]!r} does not exist; open /")

    async def _report(self, key: str, request: HttpRequest) -> HttpResponse:
        """Return the report on an engine, without pictures if the query says `pictures=0`."""
        wanted = pb.EngineReportRequest(engine=key, pictures=request.query.get("pictures") != "0")
        answer = await self._operations.service.call(
            "EngineReport", wanted, pb.EngineReportResponse, Context(request.peer)
        )
        headers = (
            ("content-type", "text/html; charset=utf-8"),
            ("content-security-policy", f"{POLICY}; frame-ancestors 'none'"),
            ("cache-control", "no-store"),
        )
        return HttpResponse(parts=(answer.content,), headers=headers)

    def _session(self, request: HttpRequest) -> HttpResponse:
        """Return the caller's name and roles, and what is wrong with the browser's credentials."""
        who = self._caller(request)
        roles = [] if who.problem else sorted(who.roles)
        return json_response({"name": who.name if who.has_shown else "", "roles": roles, "problem": who.problem})

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Yield parts of the page as events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
        yield b"retry: 2000\n\n"
        async with aclosing(self._feed.follow()) as rounds:
            async for changed in rounds:
                parts = (b"event: %s\ndata: %s\n\n" % (name.encode(), part) for name, part in changed.items())
                yield b"".join(parts) or b":\n\n"  # a comment, which shows whether the browser is still connected

    async def _still(self, camera: str, request: HttpRequest) -> HttpResponse:
        wanted = _pictures(camera, request)
        async with aclosing(self._operations.watch_pictures(wanted, Context(request.peer))) as pictures:
            try:
                picture = await asyncio.wait_for(anext(pictures, None), _STILL_SECONDS)
            except asyncio.TimeoutError:
                picture = None
        if picture is None:
            return HttpResponse(HTTPStatus.NO_CONTENT)  # not an error: the camera is lost or slow
        headers = (("content-type", "image/jpeg"), ("cache-control", "no-store"))
        return HttpResponse(parts=(picture.jpeg,), headers=headers)

    async def _video(self, wanted: pb.WatchPicturesRequest) -> AsyncGenerator[bytes, None]:
        head = b"--" + _BOUNDARY + b"\r\ncontent-type: image/jpeg\r\ncontent-length: %d\r\n\r\n"
        async with aclosing(self._operations.watch_pictures(wanted, Context("page"))) as pictures:
            async for picture in pictures:
                yield b"".join((head % len(picture.jpeg), picture.jpeg, b"\r\n"))

    async def _stream(
        self, receive: Receive, send: Send, kind: str, parts: AsyncGenerator[bytes, None]
    ) -> HttpResponse | None:
        """Send the parts until they end or the client disconnects, and return None. If `parts` ends without a part,
        send nothing and return an empty response. An error before the first part is raised, because a response can then
        still report the error."""
        headers = ((b"content-type", kind.encode()), (b"cache-control", b"no-store"), *_encoded(_ALWAYS))
        has_begun = False

        async def send_all() -> None:
            nonlocal has_begun
            async for part in parts:
                if not has_begun:
                    has_begun = True
                    await send({"type": "http.response.start", "status": 200, "headers": headers})
                await send({"type": "http.response.body", "body": part, "more_body": True})
            if has_begun:
                await send({"type": "http.response.body"})

        async with aclosing(parts):
            sending, gone = asyncio.ensure_future(send_all()), asyncio.ensure_future(_until_gone(receive))
            try:
                await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
                if has_begun or not sending.done():
                    return None
                sending.result()
                return HttpResponse(HTTPStatus.NO_CONTENT)
            finally:
                sending.cancel()
                gone.cancel()
                await asyncio.gather(sending, gone, return_exceptions=True)

    # -- commands ------------------------------------------------------------------------------------------------------

    async def _post(self, request: HttpRequest, receive: Receive) -> HttpResponse:
        if match := _MODEL.fullmatch(request.path):
            return await self._upload(match[1], unquote(match[2]), request, receive)
        with self._bodies.held() as held:
            body = await held.read(receive, request.headers)
            request = msgspec.structs.replace(request, body=body)
            if request.path == "/session":
                return self._sign_in(request)
            if match := _CALL.fullmatch(request.path):
                return await self._command(match[1], request)
        raise NotFound(f"path {request.path[:100]!r} does not exist; open /")

    def _sign_in(self, request: HttpRequest) -> HttpResponse:
        """Store a token in a cookie of the browser; an empty token signs out. Raises Unauthenticated."""
        token = parse_json(request.body, dict[str, str], "the request").get("token", "").strip()
        if token:
            who = self._guard.caller(self._guard.listener(self._address), f"Bearer {token}", request.peer)
            if who.problem:
                error = Unauthenticated(who.problem)
                self._guard.refuse(OPERATIONS + "GetStatus", who, request.peer, error)
                raise error
            if not re.fullmatch(r"[\w.~+/=-]+", token):  # other tokens cannot exist
                raise InvalidInput("invalid token: only letters, digits and -._~+/= are allowed")
        age = _COOKIE_SECONDS if token else 0
        secure = "; Secure" if self._is_secure else ""
        cookie = f"{COOKIE}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"
        return json_response({}, headers=(("set-cookie", cookie), ("cache-control", "no-store")))

    async def _command(self, name: str, request: HttpRequest) -> HttpResponse:
        if name not in COMMANDS:
            raise NotFound(f"command {name!r} does not exist")
        kind, response = COMMANDS[name]
        message = _message(request.body, kind)
        subject = str(getattr(message, "name", ""))[:200]
        async with self._call(name, request, len(request.body), name=subject):
            answer = await self._operations.service.call(name, message, response, Context(request.peer))
        return json_response(message_fields(answer))

    async def _upload(self, verb: str, name: str, request: HttpRequest, receive: Receive) -> HttpResponse:
        """Add or try a model. The body is the model's file, followed by a picture. The parameter `picture` of the query
        is the size of the picture in bytes; the other parameters are the model's settings."""
        settings = dict(request.query)
        picture = _number(settings.pop("picture", "0"), "picture")
        size = _number(request.headers.get("content-length", ""), "content-length") - picture
        if size <= 0:
            raise InvalidInput("the upload is empty; send the model's file")
        parts = _parts(name, settings, size, picture, receive)
        operations = self._operations
        method = "TryModel" if verb == "try" else "AddModel"
        work: Callable[[AsyncIterator[pb.AddModelRequest], Context], Awaitable[Message]]
        work = operations.try_model if verb == "try" else operations.add_model
        async with self._call(method, request, name=name[:200]), aclosing(parts):
            return json_response(message_fields(await work(parts, Context(request.peer))))


async def _parts(
    name: str, settings: Mapping[str, str], size: int, picture: int, receive: Receive
) -> AsyncGenerator[pb.AddModelRequest, None]:
    """Yield the parts of an upload as its body arrives."""
    yield pb.AddModelRequest(header=pb.ModelHeader(name=name, settings=settings))
    yield pb.AddModelRequest(file=pb.ModelFile(path="model.onnx", size=size))
    left = size  # missing bytes of the model; the picture follows the model, often in the same piece
    async with aclosing(_pieces(receive)) as pieces:
        async for piece in pieces:
            of_model, rest = piece[:left], piece[left:]
            if of_model:
                yield pb.AddModelRequest(chunk=of_model)
            if of_model and len(of_model) == left and picture:
                yield pb.AddModelRequest(file=pb.ModelFile(path="picture.jpg", size=picture, sample=True))
            left -= len(of_model)
            if rest:
                yield pb.AddModelRequest(chunk=rest)


async def _pieces(receive: Receive) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of a body. Raises TooSlow, or Gone if the client disconnects."""
    while True:
        try:
            event = await asyncio.wait_for(receive(), _IDLE_SECONDS)
        except asyncio.TimeoutError:
            raise TooSlow(f"no part of the upload arrived for {_IDLE_SECONDS:g} s; send the file again") from None
        if event["type"] == "http.disconnect":
            raise Gone
        if event.get("body"):
            yield event["body"]
        if not event.get("more_body", False):
            return


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _pictures(camera: str, request: HttpRequest) -> pb.WatchPicturesRequest:
    """Return the message that requests pictures of a camera, with width and rate from the query. Raises
    InvalidInput."""
    width = _number(request.query.get("width", "0"), "width")
    fps = _number(request.query.get("fps", "0"), "fps")
    return pb.WatchPicturesRequest(camera=camera, fps=min(fps, 60), width=min(width, _MOST_WIDTH))


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 15:
        raise InvalidInput(f"{what!r} is not a whole number: {text[:20]!r}")
    return int(text)


def _message(body: bytes, kind: type[Message]) -> Message:
    """Parse a message from JSON. Raises InvalidInput."""
    try:
        return json_format.Parse(body or b"{}", kind(), max_recursion_depth=10)
    except (json_format.ParseError, UnicodeDecodeError, RecursionError, json.JSONDecodeError) as error:
        raise InvalidInput(f"cannot parse the request: {' '.join(str(error).split())[:200]}") from None


def _bearer(cookies: str) -> str | None:
    """Return the token in the page's cookie as a header `authorization`; None if the cookies have no token."""
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return None
    return f"Bearer {found.value}" if found is not None and found.value else None


def _encoded(headers: Headers) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((name.encode(), value.encode("latin-1", "replace")) for name, value in headers)


async def _send(send: Send, answer: HttpResponse) -> None:
    headers: list[Any] = [*_encoded((*_ALWAYS, *answer.headers))]
    if answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        headers.append((b"content-length", str(answer.size).encode()))
    await send({"type": "http.response.start", "status": int(answer.status), "headers": headers})
    for part in answer.parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body"})
