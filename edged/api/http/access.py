"""Who may ask. The one place where a request's access is decided, before anything of it but its head is looked at.

Roles, tokens and limits are those of gRPC: every address means one of its methods. What is HTTP's alone are browsers:
one on this machine carries requests of any web page. Such a page says where it is from (`Origin`), or has its own name
lead here (`Host`).
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from edged.api.auth import identity, policy
from edged.api.auth.guard import Guard
from edged.api.auth.limits import LARGE, LargeMessage
from edged.api.auth.policy import Caller
from edged.api.grpc.status import describe, http_of, status_of
from edged.api.http.exchange import Answer, Ask, Headers, failed
from edged.api.http.routes import Route
from edged.errors import ClientLimited, EdgedError, Unauthenticated
from edged.files import NOT_JSON

_CAMERAS = "/edged.v1.Cameras/"
_LONGEST = 200  # of a name that is written down
_OF_SETTINGS = ("trace", "logging")
# The method of gRPC that each route means.
METHODS: dict[str, str] = {
    "server": policy.INFERENCE + "ServerMetadata",
    "live": policy.INFERENCE + "ServerLive",
    "ready": policy.INFERENCE + "ServerReady",
    "statistics": policy.INFERENCE + "ModelStatistics",
    "model": policy.INFERENCE + "ModelMetadata",
    "model_ready": policy.INFERENCE + "ModelReady",
    "config": policy.INFERENCE + "ModelConfig",
    "infer": policy.INFERENCE + "ModelInfer",
    "trace": policy.INFERENCE + "TraceSetting",
    "logging": policy.INFERENCE + "LogSettings",
    "index": policy.INFERENCE + "RepositoryIndex",
    "load": policy.INFERENCE + "RepositoryModelLoad",
    "unload": policy.INFERENCE + "RepositoryModelUnload",
    "system_regions": policy.INFERENCE + "SystemSharedMemoryStatus",
    "register_system": policy.INFERENCE + "SystemSharedMemoryRegister",
    "unregister_system": policy.INFERENCE + "SystemSharedMemoryUnregister",
    "cuda_regions": policy.INFERENCE + "CudaSharedMemoryStatus",
    "register_cuda": policy.INFERENCE + "CudaSharedMemoryRegister",
    "unregister_cuda": policy.INFERENCE + "CudaSharedMemoryUnregister",
    "detect": _CAMERAS + "DetectOne",
}


class HttpGuard:
    """The guard before the requests of one listener."""

    def __init__(self, guard: Guard, address: str) -> None:
        self._guard, self._address = guard, address

    def admit(self, route: Route, ask: Ask) -> Caller:
        """Who asks. Unauthenticated or Forbidden where it may not."""
        method = METHODS[route.what]
        listener = self._guard.listener(self._address, has_tls=False)
        who = self._guard.caller(listener, ask.headers.get("authorization"), ask.peer)
        self._guard.require_allowed(method, who, ask.peer)
        return who

    async def carry(self, route: Route, ask: Ask, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Does what is asked for, within the limits of who asks; written down where it is a command. Raises what
        `admit` and the work do, and ClientLimited."""
        who, guard, method = self.admit(route, ask), self._guard, METHODS[route.what]
        identity.CURRENT.set(who)
        usage, size = guard.limits.usage(who.key, who.name, time.monotonic()), len(ask.body)
        guard.limits.request(usage, size, time.monotonic())
        began, outcome, message = time.perf_counter(), "CANCELLED", ""
        large = LargeMessage(guard.budget, ask.peer, who)
        try:
            if size >= LARGE:
                await large.begin(size)
            with guard.under_way(who) if who.has_shown else contextlib.nullcontext():
                answer = await work()
            outcome = "OK"
            return answer
        except Exception as error:
            code, message = describe(error)
            outcome = code.name
            raise
        finally:
            large.end()
            guard.limits.end(usage, size)
            if policy.is_audited(method):
                names = {name: value[:_LONGEST] for name, value in route.names.items()} | _settings(route, ask.body)
                guard.record(method, who, ask.peer, names, outcome, message, began)


def _settings(route: Route, body: bytes) -> dict[str, str]:
    """Which settings a request is about, as gRPC's record has them: never their values."""
    if route.what not in _OF_SETTINGS or not body:
        return {}
    try:
        named = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except NOT_JSON:  # which is how the call ends, and that is written down
        return {}
    return {"settings": ", ".join(sorted(named))[:_LONGEST]} if named else {}


def refused(error: EdgedError) -> Answer:
    """The answer to whoever is not let in, or asks too much."""
    headers: Headers = ()
    if isinstance(error, Unauthenticated):
        headers = (("www-authenticate", 'Bearer realm="edged"'),)
    elif isinstance(error, ClientLimited):
        headers = (("retry-after", str(math.ceil(error.seconds))),)
    return failed(http_of(status_of(error), error), error.code, str(error), headers)


def refusal(headers: Mapping[str, str], peer: str) -> str | None:
    """Why a request of a web page is refused, in one line; None where it is not, or is none. `peer` is the client as
    gRPC names it."""
    host = headers.get("host", "")
    if not peer.startswith("unix:") and host and not _is_here(host):
        return f"host {host[:80]!r} is not a name of this machine's loopback; ask localhost"
    origin = headers.get("origin")
    if origin is not None and (not host or origin.partition("://")[2] != host):
        return "requests of web pages from elsewhere are refused; ask from a program, or without Origin"
    return None


def _is_here(host: str) -> bool:
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
    if name.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
