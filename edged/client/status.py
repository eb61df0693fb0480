"""From a gRPC status to an error of edged; `edged.api.grpc.status` is the other direction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from edged import errors
from edged.client.address import is_here
from edged.errors import (
    AlreadyExists,
    DaemonUnavailable,
    DeadlineExceeded,
    EdgedError,
    ErrorCode,
    Forbidden,
    InvalidInput,
    NotFound,
    NotReady,
    OutOfSpace,
    Overloaded,
    Refused,
    TooLarge,
    Unauthenticated,
    Unsupported,
)
from edged.proto import status_pb2

Value = TypeVar("Value")

# The most general class of each gRPC status; any other is a plain EdgedError.
_ERRORS: dict[grpc.StatusCode, type[EdgedError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidInput,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.UNAVAILABLE: NotReady,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
}
# A code of the daemon makes it a class below that one, or one of these, which share a status with another.
_OWN_STATUS = (OutOfSpace, TooLarge)
_CLASSES: dict[ErrorCode, type[EdgedError]] = {
    kind.code: kind
    for kind in reversed(list(vars(errors).values()))
    if isinstance(kind, type) and issubclass(kind, EdgedError)
}
_DETAILS = "grpc-status-details-bin"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}

# gRPC's own words: UNAVAILABLE may also be the daemon's status, and nothing else tells the two apart.
_UNREACHABLE = (
    "failed to connect",
    "connections to all backends failing",
    "dns resolution failed",
    "name resolution",
    "errors resolving",
)
# Words of TLS, the most specific first. A peer that wants TLS or a certificate hangs up without saying so.
_HANDSHAKE: tuple[tuple[str, str], ...] = (
    ("certificate has expired", "the certificate of the daemon at {} has expired; renew it there"),
    (
        "certificate is not yet valid",
        "the certificate of the daemon at {} is not valid yet; is the clock right?",
    ),
    (
        "hostname verification",
        "the certificate of the daemon at {} is another host's; give its name: EDGED_SERVER_NAME",
    ),
    ("certificate_verify_failed", "the certificate of the daemon at {} is not trusted here; give its CA: EDGED_CA"),
    ("wrong_version_number", "what answers at {} does not speak TLS; leave tls: and the CA out, or ask another port"),
)
_HUNG_UP = ("socket closed", "connection reset", "recvmsg")
_GONE = (
    "stream removed",
    "socket closed",
    "recvmsg",
    "sendmsg",
    "connection reset",
    "broken pipe",
    "goaway",
    "endpoint closing",
    "transport closed",
    "connection closed",
)


def code_name(code: int) -> str:
    """Return the name of a gRPC status code, such as UNAVAILABLE for 14; an unknown number as text."""
    return _NAMES.get(code, str(code))


def known_code(reason: str) -> ErrorCode | None:
    """The code of that name; None for no name, or one of a later edged."""
    return ErrorCode(reason) if reason in ErrorCode.__members__ else None


def to_edged(
    code: grpc.StatusCode, details: str | None, target: str, metadata: Iterable[tuple[str, str | bytes]] = ()
) -> EdgedError:
    """Return the error for a failed call to `target`; `metadata` came with the status."""
    message = (details or "").strip()
    words = message.lower()
    if code is grpc.StatusCode.UNAVAILABLE:
        if any(sign in words for sign in _UNREACHABLE):
            refusal = _refusal(words, target)
            if refusal:
                return DaemonUnavailable(refusal)
            return DaemonUnavailable(f"no edged daemon answers at {target}{_remedy(words, target)}")
        if any(sign in words for sign in _GONE):
            again = "start it again or wait" if is_here(target) else "wait"
            return DaemonUnavailable(f"the edged daemon at {target} went away; {again} until it is back")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and words in ("", "deadline exceeded"):
        return late(target)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in words:
        return TooLarge(f"the edged daemon at {target} takes no message this large; send a smaller picture")
    if code is grpc.StatusCode.UNIMPLEMENTED and "method not found" in words:
        return Unsupported(f"the server at {target} is not an edged daemon, or one of another version")
    reason = _code_in(metadata)
    kind, exact = _ERRORS.get(code, EdgedError), _CLASSES.get(reason) if reason else None
    if exact is not None and issubclass(exact, (kind, *_OWN_STATUS)):
        kind = exact
    error = kind(message or f"the daemon at {target} answered {code.name} without a reason")
    error.code = reason or error.code
    return error


def _code_in(metadata: Iterable[tuple[str, str | bytes]]) -> ErrorCode | None:
    """The code in a call's trailing metadata; None from another server or an edged with codes unknown here."""
    with contextlib.suppress(DecodeError):
        for name, value in metadata:
            if name == _DETAILS and isinstance(value, bytes):
                for detail in status_pb2.Status.FromString(value).details:
                    info = status_pb2.ErrorInfo.FromString(detail.value if detail.type_url == _ERROR_INFO else b"")
                    if info.domain == "edged":
                        return known_code(info.reason)
    return None


def from_rpc_error(error: grpc.RpcError, target: str) -> EdgedError:
    """The same for an exception of grpc or grpc.aio."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if not callable(code) or not callable(details):
        return EdgedError(f"the call to {target} failed: {error}")
    metadata: Any = getattr(error, "trailing_metadata", tuple)()
    return to_edged(code() or grpc.StatusCode.UNKNOWN, details(), target, metadata or ())


def late(target: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"the edged daemon at {target} did not answer in time; its log may say why")


def _refusal(words: str, target: str) -> str:
    """Why a server at the target refuses the connection; empty if there is no server."""
    told = next((told for sign, told in _HANDSHAKE if sign in words), "")
    if not told and not target.startswith("unix:") and any(sign in words for sign in _HUNG_UP):
        told = "what answers at {} hangs up; it may want TLS (EDGED_CA), or your certificate (EDGED_CERTIFICATE)"
    return told.format(target)


def _remedy(words: str, target: str) -> str:
    """What the user can do."""
    if "permission denied" in words:
        return " (permission denied): use sudo, or join the socket's group (docs/security.md)"
    if "resolution" in words or "errors resolving" in words:
        return " (no such host): correct the name, or give the box's IP address"
    if is_here(target):
        return "; start one with: edged serve"
    return "; see whether the box is up, its edged listens at that address (`listen`) and its firewall lets you in"


_Status: TypeAlias = tuple[grpc.StatusCode, str | None, tuple[tuple[str, str | bytes], ...]]

_STAND_IN = "Internal error from Core"
_GRACE_S = 1.0


class Statuses:
    """Keeps the status that the daemon sent, if grpc.aio loses it: the first of a call that is not the stand-in.

    If the daemon refuses a call while the client is still writing, a write fails, and grpc.aio then puts "Internal
    error from Core" in the place of the daemon's status, which has come or is about to come
    (https://github.com/grpc/grpc/issues/36066). That happens to one refused stream in four.
    """

    def __init__(self, call: aio.Call) -> None:
        self._real: asyncio.Future[_Status] = asyncio.get_running_loop().create_future()
        call.add_done_callback(self._on_status)

    async def error(self, raised: grpc.RpcError, target: str) -> EdgedError:
        """The error for a call that failed with `raised`."""
        try:
            code, details, metadata = await asyncio.wait_for(asyncio.shield(self._real), _GRACE_S)
        except asyncio.TimeoutError:
            code, details, metadata = _said(raised)
        return to_edged(code, details, target, metadata)

    def _on_status(self, call: Any) -> None:
        """Called again whenever the status is replaced."""
        code: grpc.StatusCode | None = _at_once(call.code())
        details: str | None = _at_once(call.details())
        if code is not None and details != _STAND_IN and not self._real.done():
            self._real.set_result((code, details, tuple(_at_once(call.trailing_metadata()) or ())))


def _at_once(answer: Coroutine[Any, Any, Value]) -> Value | None:
    """Return the value of a coroutine that does not wait, like the getters of a call that has a status."""
    try:
        answer.send(None)
    except StopIteration as stop:
        value: Value = stop.value
        return value
    answer.close()
    return None


def _said(raised: grpc.RpcError) -> _Status:
    if isinstance(raised, aio.AioRpcError):
        return raised.code(), raised.details(), tuple(raised.trailing_metadata() or ())
    return grpc.StatusCode.UNKNOWN, str(raised), ()
