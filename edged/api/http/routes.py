"""Routes HTTP requests: each path stands for a gRPC method, with the same roles, tokens and limits."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec

from edged.api.auth import policy
from edged.api.auth.guard import Guard
from edged.api.auth.policy import Caller
from edged.api.auth.tokens import PREFIX as TOKEN_PREFIX
from edged.api.grpc.status import describe, error_code, http_of
from edged.api.http import handlers, openapi
from edged.api.http.call_scope import call_scope
from edged.api.http.exchange import (
    Headers,
    HttpRequest,
    HttpResponse,
    error_response,
    json_response,
    web_page_refusal,
)
from edged.api.http.handlers import Calls
from edged.api.http.streamed import Send
from edged.api.language import openai, openai_requests
from edged.errors import ClientLimited, EdgedError, ErrorCode, Unauthenticated
from edged.files import NOT_JSON

_GET, _POST, _BOTH = ("GET",), ("POST",), ("GET", "POST")
_LONGEST_NAME = 200  # characters of a name in the audit log

_MODEL = "v2/models/{model}[/versions/{version}]"
_REPOSITORY, _SYSTEM, _CUDA = "v2/repository[/{repository}]", "v2/systemsharedmemory", "v2/cudasharedmemory"
# gRPC method, HTTP methods, path. A {name} is one segment of the path; a part in brackets is optional. The first match
# is used.
TABLE: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("ServerMetadata", _GET, "v2"),
    ("ServerLive", _GET, "v2/health/live"),
    ("ServerReady", _GET, "v2/health/ready"),
    ("ModelStatistics", _GET, "v2/models[/{model}[/versions/{version}]]/stats"),
    ("ModelMetadata", _GET, _MODEL),
    ("ModelReady", _GET, f"{_MODEL}/ready"),
    ("ModelConfig", _GET, f"{_MODEL}/config"),
    ("ModelInfer", _POST, f"{_MODEL}/infer"),
    ("TraceSetting", _BOTH, "v2[/models/{model}]/trace/setting"),
    ("LogSettings", _BOTH, "v2/logging"),
    ("RepositoryIndex", _POST, f"{_REPOSITORY}/index"),
    ("RepositoryModelLoad", _POST, f"{_REPOSITORY}/models/{{model}}/load"),
    ("RepositoryModelUnload", _POST, f"{_REPOSITORY}/models/{{model}}/unload"),
    ("SystemSharedMemoryStatus", _GET, f"{_SYSTEM}[/region/{{region}}]/status"),
    ("SystemSharedMemoryRegister", _POST, f"{_SYSTEM}/region/{{region}}/register"),
    ("SystemSharedMemoryUnregister", _POST, f"{_SYSTEM}[/region/{{region}}]/unregister"),
    ("CudaSharedMemoryStatus", _GET, f"{_CUDA}[/region/{{region}}]/status"),
    ("CudaSharedMemoryRegister", _POST, f"{_CUDA}/region/{{region}}/register"),
    ("CudaSharedMemoryUnregister", _POST, f"{_CUDA}[/region/{{region}}]/unregister"),
    ("DetectOne", _POST, "edged/v1/detect[/{model}]"),
    ("LanguageModels", _GET, "v1/models[/{model}]"),
    ("Chat", _POST, "v1/chat/completions"),
    ("Complete", _POST, "v1/completions"),
)
# The paths in gRPC of the methods that are not in the service `policy.INFERENCE`.
RPCS = {
    "DetectOne": "/edged.v1.Cameras/DetectOne",
    "LanguageModels": "/edged.v1.Language/LanguageModels",
    "Chat": "/edged.v1.Language/Chat",
    "Complete": "/edged.v1.Language/Chat",
}


def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path.replace("[", "(?:").replace("]", ")?")))


_DOCUMENT = "openapi.json"  # a route that needs no role
_PATTERNS = (
    (re.compile(re.escape(_DOCUMENT)), _GET, _DOCUMENT),
    *((_pattern(path), methods, method) for method, methods, path in TABLE),
)


class Route(NamedTuple):
    """The method that a request calls. `method` is the method's name in gRPC. `names` are the variable parts of the
    request's path."""

    method: str
    names: dict[str, str]

    @property
    def rpc(self) -> str:
        """The method's path in gRPC."""
        return RPCS.get(self.method, policy.INFERENCE + self.method)


def find(method: str, path: str) -> Route | HttpResponse:
    """Return the route of a request, or the response if no call is needed: the OpenAPI document, the allowed methods,
    or the error for an unknown path or method. HEAD counts as GET."""
    plain = "/".join(quote(unquote(part), safe="") for part in path.strip("/").split("/"))
    for pattern, methods, rpc in _PATTERNS:
        match = pattern.fullmatch(plain)
        if match is None:
            continue
        allowed = (*(("HEAD",) if "GET" in methods else ()), *methods, "OPTIONS")
        header = (("allow", ", ".join(allowed)),)
        if method == "OPTIONS":
            return HttpResponse(HTTPStatus.NO_CONTENT, headers=header)
        if method not in allowed:
            message = f"method {method[:20]} is not allowed; use {methods[-1]}"
            return _refusal(path, HTTPStatus.METHOD_NOT_ALLOWED, ErrorCode.UNSUPPORTED, message, header)
        if rpc == _DOCUMENT:
            return _document()
        return Route(rpc, {name: unquote(part) for name, part in match.groupdict().items() if part is not None})
    message = f"path {path[:100]!r} does not exist; see docs/http.md"
    return _refusal(path, HTTPStatus.NOT_FOUND, ErrorCode.NOT_FOUND, message)


@functools.cache
def _document() -> HttpResponse:
    return json_response(openapi.document(TABLE, RPCS))


class Dispatcher:
    """Checks and answers the requests of one listener."""

    def __init__(self, calls: Calls, guard: Guard, address: str) -> None:
        self._calls, self._guard, self._address = calls, guard, address

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        """Return the response if the head of a request is enough to answer the request, for example with an error;
        otherwise None."""
        is_local = self._guard.listener(self._address, has_tls=False).is_local
        why = web_page_refusal(request.headers, request.peer, any_host=not is_local)
        if why is not None:
            return error_response(HTTPStatus.FORBIDDEN, ErrorCode.PERMISSION_DENIED, why)
        route = find(request.method, request.path)
        if isinstance(route, HttpResponse):
            return route
        try:
            self._admit(route, request)
        except EdgedError as error:
            return _failure(request, error)
        return None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """Return the response to a request that was not refused; an error becomes a response too."""
        try:
            route = find(request.method, request.path)
            return route if isinstance(route, HttpResponse) else await self._call(route, request)
        except Exception as error:
            return _failure(request, error)

    def _admit(self, route: Route, request: HttpRequest) -> Caller:
        """Return the caller. Raises Unauthenticated or Forbidden if the caller may not call the method."""
        listener = self._guard.listener(self._address, has_tls=False)
        who = self._guard.caller(listener, _authorization(request), request.peer)
        self._guard.require_allowed(route.rpc, who, request.peer)
        return who

    async def _call(self, route: Route, request: HttpRequest) -> HttpResponse:
        """Run the handler within the client's limits, and record the call if its method needs the role `operate`.
        Raises ClientLimited, and the errors of `_admit` and the handler."""
        if route.method in ("Chat", "Complete") and openai_requests.is_streamed(request):
            return await self._stream(route, request)
        who, about = self._admit(route, request), {}
        if policy.is_audited(route.rpc):
            about = {name: value[:_LONGEST_NAME] for name, value in route.names.items()}
            about |= _settings(route, request.body)
        async with call_scope(self._guard, route.rpc, who, request.peer, len(request.body), about):
            return await self._handle(route, request)

    async def _handle(self, route: Route, request: HttpRequest) -> HttpResponse:
        if route.method == "ModelInfer":
            return await handlers.infer(self._calls, request, **route.names)
        if route.method == "LanguageModels":
            return openai.models(self._calls.language, **route.names)
        if route.method in ("Chat", "Complete"):
            return await openai.answer(self._calls.language, request, _KINDS[route.method])
        if route.method == "DetectOne":
            return await handlers.detect(self._calls, request, **route.names)
        return await handlers.by_message(self._calls, request, route.method, route.names)

    async def _stream(self, route: Route, request: HttpRequest) -> HttpResponse:
        """Return a response whose body is a stream. The call runs until the handler has sent the last event."""
        who = self._admit(route, request)
        work = openai.begin(self._calls.language, request, _KINDS[route.method])

        async def run(send: Send) -> None:
            size = len(request.body)
            async with call_scope(self._guard, route.rpc, who, request.peer, size, {}, is_stream=True):
                await work(send)

        return await openai.stream(run)


def _authorization(request: HttpRequest) -> str | None:
    """Return the header `authorization`; None if the header is missing. Clients of OpenAI's protocol always send a key,
    perhaps a dummy. So on the paths of that protocol, a header without a token of edged counts as missing."""
    found = request.headers.get("authorization")
    if found is None or not request.path.startswith(_OPENAI):
        return found
    secret = policy.secret_of(found)
    return found if secret is not None and secret.startswith(TOKEN_PREFIX) else None


_OPENAI = "/v1/"  # the beginning of the paths of OpenAI's protocol
_KINDS: Mapping[str, openai_requests.Kind] = {"Chat": "chat", "Complete": "completion"}


def _settings(route: Route, body: bytes) -> dict[str, str]:
    """Return the names of the settings in a request without the values, as `audit.about` does for gRPC calls."""
    if route.method not in ("TraceSetting", "LogSettings") or not body:
        return {}
    try:
        named = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except NOT_JSON:  # the handler will fail in the same way, and the failure is recorded
        return {}
    return {"settings": ", ".join(sorted(named))[:_LONGEST_NAME]} if named else {}


def _failure(request: HttpRequest, error: Exception) -> HttpResponse:
    """Return the response to a request that failed, in the form of the protocol that the path belongs to."""
    found = failure_response(error)
    if not request.path.startswith(_OPENAI):
        return found
    headers = tuple(each for each in found.headers if each[0] != "content-type")
    return _refusal(request.path, HTTPStatus(found.status), error_code(error), describe(error)[1], headers)


def _refusal(path: str, status: HTTPStatus, code: ErrorCode, message: str, headers: Headers = ()) -> HttpResponse:
    """Return an error in the form of the protocol that the path belongs to."""
    if not path.startswith(_OPENAI):
        return error_response(status, code, message, headers)
    kind = "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    return json_response(openai.failure(message, code.value, kind), status, headers)


def failure_response(error: Exception) -> HttpResponse:
    """Return the response to a request that failed or was refused."""
    headers: Headers = ()
    if isinstance(error, Unauthenticated):
        headers = (("www-authenticate", 'Bearer realm="edged"'),)
    elif isinstance(error, ClientLimited):
        headers = (("retry-after", str(math.ceil(error.seconds))),)
    status, message = describe(error)
    return error_response(http_of(status, error), error_code(error), message, headers)
