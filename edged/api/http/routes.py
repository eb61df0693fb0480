"""HTTP requests: which method of gRPC a path stands for, whether its client may call it, and who answers.

Roles, tokens and limits are those of gRPC, since every path stands for one of its methods.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

import msgspec

from edged.api.auth import identity, policy
from edged.api.auth.guard import Guard
from edged.api.auth.limits import LARGE, LargeMessage
from edged.api.auth.policy import Caller
from edged.api.grpc.status import describe, error_code, http_of
from edged.api.http import handlers
from edged.api.http.exchange import Headers, HttpRequest, HttpResponse, error_response, web_page_refusal
from edged.api.http.handlers import Calls
from edged.errors import ClientLimited, EdgedError, ErrorCode, Unauthenticated
from edged.files import NOT_JSON

Handler: TypeAlias = Callable[..., Awaitable[HttpResponse]]

_GET, _POST, _BOTH = ("GET",), ("POST",), ("GET", "POST")
_LONGEST_NAME = 200  # characters, in a record

# Path, HTTP methods, method of gRPC, handler. A {name} is one part of the path, and an argument of the handler; the
# first match counts.
TABLE: tuple[tuple[str, tuple[str, ...], str, Handler], ...] = (
    ("v2", _GET, "ServerMetadata", handlers.server),
    ("v2/health/live", _GET, "ServerLive", handlers.live),
    ("v2/health/ready", _GET, "ServerReady", handlers.ready),
    ("v2/models/stats", _GET, "ModelStatistics", handlers.statistics),
    ("v2/models/{model}", _GET, "ModelMetadata", handlers.model),
    ("v2/models/{model}/ready", _GET, "ModelReady", handlers.model_ready),
    ("v2/models/{model}/config", _GET, "ModelConfig", handlers.config),
    ("v2/models/{model}/stats", _GET, "ModelStatistics", handlers.statistics),
    ("v2/models/{model}/infer", _POST, "ModelInfer", handlers.infer),
    ("v2/models/{model}/versions/{version}", _GET, "ModelMetadata", handlers.model),
    ("v2/models/{model}/versions/{version}/ready", _GET, "ModelReady", handlers.model_ready),
    ("v2/models/{model}/versions/{version}/config", _GET, "ModelConfig", handlers.config),
    ("v2/models/{model}/versions/{version}/stats", _GET, "ModelStatistics", handlers.statistics),
    ("v2/models/{model}/versions/{version}/infer", _POST, "ModelInfer", handlers.infer),
    ("v2/models/{model}/trace/setting", _BOTH, "TraceSetting", handlers.trace),
    ("v2/trace/setting", _BOTH, "TraceSetting", handlers.trace),
    ("v2/logging", _BOTH, "LogSettings", handlers.logging),
    ("v2/repository/index", _POST, "RepositoryIndex", handlers.index),
    ("v2/repository/{repository}/index", _POST, "RepositoryIndex", handlers.index),
    ("v2/repository/models/{model}/load", _POST, "RepositoryModelLoad", handlers.load),
    ("v2/repository/models/{model}/unload", _POST, "RepositoryModelUnload", handlers.unload),
    ("v2/repository/{repository}/models/{model}/load", _POST, "RepositoryModelLoad", handlers.load),
    ("v2/repository/{repository}/models/{model}/unload", _POST, "RepositoryModelUnload", handlers.unload),
    ("v2/systemsharedmemory/status", _GET, "SystemSharedMemoryStatus", handlers.system_regions),
    ("v2/systemsharedmemory/region/{region}/status", _GET, "SystemSharedMemoryStatus", handlers.system_regions),
    ("v2/systemsharedmemory/region/{region}/register", _POST, "SystemSharedMemoryRegister", handlers.register_system),
    (
        "v2/systemsharedmemory/region/{region}/unregister",
        _POST,
        "SystemSharedMemoryUnregister",
        handlers.unregister_system,
    ),
    ("v2/systemsharedmemory/unregister", _POST, "SystemSharedMemoryUnregister", handlers.unregister_system),
    ("v2/cudasharedmemory/status", _GET, "CudaSharedMemoryStatus", handlers.cuda_regions),
    ("v2/cudasharedmemory/region/{region}/status", _GET, "CudaSharedMemoryStatus", handlers.cuda_regions),
    ("v2/cudasharedmemory/region/{region}/register", _POST, "CudaSharedMemoryRegister", handlers.register_cuda),
    ("v2/cudasharedmemory/region/{region}/unregister", _POST, "CudaSharedMemoryUnregister", handlers.unregister_cuda),
    ("v2/cudasharedmemory/unregister", _POST, "CudaSharedMemoryUnregister", handlers.unregister_cuda),
    ("edged/v1/detect", _POST, "DetectOne", handlers.detect),
    ("edged/v1/detect/{model}", _POST, "DetectOne", handlers.detect),
)
_ROUTES = tuple((tuple(path.split("/")), methods, rpc, handler) for path, methods, rpc, handler in TABLE)


class Route(NamedTuple):
    """`rpc` is the path of gRPC's method; `names` are the variable parts of the path, arguments of the handler."""

    rpc: str
    handler: Handler
    names: dict[str, str]


def find(method: str, path: str) -> Route | HttpResponse:
    """The route of a request, or the error for one that leads nowhere. HEAD counts as GET."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    for pattern, methods, rpc, handler in _ROUTES:
        names = _match(pattern, parts)
        if names is None:
            continue
        allowed = (*(("HEAD",) if "GET" in methods else ()), *methods, "OPTIONS")
        header = (("allow", ", ".join(allowed)),)
        if method == "OPTIONS":
            return HttpResponse(HTTPStatus.NO_CONTENT, headers=header)
        if method not in allowed:
            message = f"method {method[:20]} is not allowed; use {methods[-1]}"
            return error_response(HTTPStatus.METHOD_NOT_ALLOWED, ErrorCode.UNSUPPORTED, message, header)
        service = "/edged.v1.Cameras/" if handler is handlers.detect else policy.INFERENCE
        return Route(service + rpc, handler, names)
    return error_response(
        HTTPStatus.NOT_FOUND, ErrorCode.NOT_FOUND, f"path {path[:100]!r} does not exist; see docs/http.md"
    )


def _match(pattern: tuple[str, ...], parts: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(parts):
        return None
    names: dict[str, str] = {}
    for wanted, part in zip(pattern, parts, strict=True):
        if wanted.startswith("{"):
            names[wanted[1:-1]] = part
        elif wanted != part:
            return None
    return names if all(names.values()) else None


class Dispatcher:
    """Checks and answers the requests of one listener."""

    def __init__(self, calls: Calls, guard: Guard, address: str) -> None:
        self._calls, self._guard, self._address = calls, guard, address

    def refusal(self, request: HttpRequest) -> HttpResponse | None:
        """The error for a request that leads nowhere or is not allowed, from its head alone; None for all others."""
        why = web_page_refusal(request.headers, request.peer)
        if why is not None:
            return error_response(HTTPStatus.FORBIDDEN, ErrorCode.PERMISSION_DENIED, why)
        route = find(request.method, request.path)
        if isinstance(route, HttpResponse):
            return route
        try:
            self._admit(route, request)
        except EdgedError as error:
            return failure_response(error)
        return None

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """The response to a request that was not refused, also if it fails."""
        try:
            route = find(request.method, request.path)
            return route if isinstance(route, HttpResponse) else await self._call(route, request)
        except Exception as error:
            return failure_response(error)

    def _admit(self, route: Route, request: HttpRequest) -> Caller:
        """Who calls. Unauthenticated, Forbidden."""
        listener = self._guard.listener(self._address, has_tls=False)
        who = self._guard.caller(listener, request.headers.get("authorization"), request.peer)
        self._guard.require_allowed(route.rpc, who, request.peer)
        return who

    async def _call(self, route: Route, request: HttpRequest) -> HttpResponse:
        """Run the handler within the client's limits, and record it if it is a command. ClientLimited, and what
        `_admit` and the handler raise."""
        who, guard = self._admit(route, request), self._guard
        identity.CURRENT.set(who)
        usage, size = guard.limits.usage(who.key, who.name, time.monotonic()), len(request.body)
        guard.limits.request(usage, size, time.monotonic())
        began, outcome, message = time.perf_counter(), "CANCELLED", ""
        large = LargeMessage(guard.budget, request.peer, who)
        try:
            if size >= LARGE:
                await large.begin(size)
            with guard.under_way(who) if who.has_shown else contextlib.nullcontext():
                answer = await route.handler(self._calls, request, **route.names)
            outcome = "OK"
            return answer
        except Exception as error:
            code, message = describe(error)
            outcome = code.name
            raise
        finally:
            large.end()
            guard.limits.end(usage, size)
            if policy.is_audited(route.rpc):
                names = {name: value[:_LONGEST_NAME] for name, value in route.names.items()}
                guard.record(
                    route.rpc, who, request.peer, names | _settings(route, request.body), outcome, message, began
                )


def _settings(route: Route, body: bytes) -> dict[str, str]:
    """Which settings a request is about, as gRPC's record has them: never their values."""
    if route.handler not in (handlers.trace, handlers.logging) or not body:
        return {}
    try:
        named = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except NOT_JSON:  # the call ends with that error, which is recorded
        return {}
    return {"settings": ", ".join(sorted(named))[:_LONGEST_NAME]} if named else {}


def failure_response(error: Exception) -> HttpResponse:
    """The response to a request that failed or was refused."""
    headers: Headers = ()
    if isinstance(error, Unauthenticated):
        headers = (("www-authenticate", 'Bearer realm="edged"'),)
    elif isinstance(error, ClientLimited):
        headers = (("retry-after", str(math.ceil(error.seconds))),)
    status, message = describe(error)
    return error_response(http_of(status, error), error_code(error), message, headers)
