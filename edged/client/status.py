"""Converts a gRPC status to an error of edged; `edged.api.grpc.status` converts in the other direction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from edged import errors
from edged.client.address import is_here
from edged.errors import DaemonUnavailable, DeadlineExceeded, EdgedError, ErrorCode, TooLarge, Unsupported
from edged.proto import status_pb2

# The most general class for each gRPC status; any other status becomes a plain EdgedError.
_ERRORS: dict[grpc.StatusCode, type[EdgedError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidInput,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: errors.Refused,
    grpc.StatusCode.UNAVAILABLE: errors.NotReady,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Overloaded,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.Forbidden,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
}
# The daemon's error code selects a subclass of the class for the status. It may also select these two classes: they
# share a status with Overloaded, but are not subclasses of it.
_OWN_STATUS = (errors.OutOfSpace, TooLarge)
_CLASSES: dict[ErrorCode, type[EdgedError]] = {
    kind.code: kind
    for kind in reversed(list(vars(errors).values()))
    if isinstance(kind, type) and issubclass(kind, EdgedError)
}
_DETAILS = "grpc-status-details-bin"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_NAMES: dict[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}

# Texts of gRPC's own UNAVAILABLE errors. A daemon may answer UNAVAILABLE too; only the text shows the difference.
_UNREACHABLE = (
    "failed to connect",
    "connections to all backends failing",
    "dns resolution failed",
    "name resolution",
    "errors resolving",
)
# Texts of TLS errors, the most specific first. A server that requires TLS or a certificate just closes the connection.
_HANDSHAKE: tuple[tuple[str, str], ...] = (
    ("certificate has expired", "the certificate of the daemon at {} has expired; renew it there"),
    (
        "certificate is not yet valid",
        "the certificate of the daemon at {} is not valid yet; check the clocks of both machines",
    ),
    (
        "hostname verification",
        "the certificate of the daemon at {} names another host; give the certificate's name: EDGED_SERVER_NAME",
    ),
    ("certificate_verify_failed", "the certificate of the daemon at {} is not trusted here; give its CA: EDGED_CA"),
    ("wrong_version_number", "the server at {} does not speak TLS; leave out tls: and the CA, or use another port"),
)
_HUNG_UP = ("socket closed", "connection reset", "recvmsg")
_LATE = ("deadline exceeded", "stream removed (deadline exceeded)")  # gRPC's texts for its own deadline
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
    """Return the name of a gRPC status code, such as UNAVAILABLE for 14; for an unknown code, the number as text."""
    return _NAMES.get(code, str(code))


def known_code(reason: str) -> ErrorCode | None:
    """Return the error code named `reason`; None for an empty name, or for a code that only later versions of edged
    have."""
    return ErrorCode(reason) if reason in ErrorCode.__members__ else None


def to_edged(
    code: grpc.StatusCode, details: str | None, target: str, metadata: Iterable[tuple[str, str | bytes]] = ()
) -> EdgedError:
    """Return the error of a failed call to `target`; `metadata` is the call's trailing metadata."""
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
    if words in _LATE or (code is grpc.StatusCode.DEADLINE_EXCEEDED and not words):
        return late(target)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in words:
        return TooLarge(f"the edged daemon at {target} does not accept a message this large; send a smaller picture")
    if code is grpc.StatusCode.UNIMPLEMENTED and "method not found" in words:
        return Unsupported(f"the server at {target} is not an edged daemon, or its version of edged lacks this call")
    reason = _code_in(metadata)
    kind, exact = _ERRORS.get(code, EdgedError), _CLASSES.get(reason) if reason else None
    if exact is not None and issubclass(exact, (kind, *_OWN_STATUS)):
        kind = exact
    error = kind(message or f"the daemon at {target} answered {code.name} without a reason")
    error.code = reason or error.code
    return error


def _code_in(metadata: Iterable[tuple[str, str | bytes]]) -> ErrorCode | None:
    """Return edged's error code in a call's trailing metadata. Return None if the metadata has no code or an unknown
    code."""
    with contextlib.suppress(DecodeError):
        for name, value in metadata:
            if name == _DETAILS and isinstance(value, bytes):
                for detail in status_pb2.Status.FromString(value).details:
                    info = status_pb2.ErrorInfo.FromString(detail.value if detail.type_url == _ERROR_INFO else b"")
                    if info.domain == "edged":
                        return known_code(info.reason)
    return None


def from_rpc_error(error: grpc.RpcError, target: str) -> EdgedError:
    """Return the error for an exception of gRPC."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    if not callable(code) or not callable(details):
        return EdgedError(f"the call to {target} failed: {error}")
    metadata: Any = getattr(error, "trailing_metadata", tuple)()
    return to_edged(code() or grpc.StatusCode.UNKNOWN, details(), target, metadata or ())


def late(target: str) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"the edged daemon at {target} did not answer in time; look for the reason in the daemon's log"
    )


def _refusal(words: str, target: str) -> str:
    """Return why a server at the target refuses the connection; an empty string if no server answers."""
    reason = next((reason for sign, reason in _HANDSHAKE if sign in words), "")
    if not reason and not target.startswith("unix:") and any(sign in words for sign in _HUNG_UP):
        reason = "the server at {} hangs up; perhaps it requires TLS (EDGED_CA), or a certificate (EDGED_CERTIFICATE)"
    return reason.format(target)


def _remedy(words: str, target: str) -> str:
    """Return the end of the error message, which names the remedy."""
    if "permission denied" in words:
        return " (permission denied): use sudo, or join the socket's group (docs/security.md)"
    if "resolution" in words or "errors resolving" in words:
        return " (no such host): correct the name, or give the box's IP address"
    if is_here(target):
        return "; start one with: edged serve, or as a service: sudo systemctl start edged"
    return "; check that the box is up, its daemon listens at this address (key 'listen'), and no firewall blocks it"
