"""Maps edged's errors to gRPC status codes, and gRPC status codes to HTTP status codes."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus

from edged import errors
from edged.api.http2.headers import Metadata, Status
from edged.errors import EdgedError, ErrorCode
from edged.proto import status_pb2

_LOG = logging.getLogger("edged.api")

# Trailing metadata with a google.rpc.Status, where gRPC libraries look for the details of an error.
_DETAILS = "grpc-status-details-bin"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_DOMAIN = "edged"
_LONGEST = 2000  # characters; the details omit a longer message, since clients accept only 8 KiB of metadata

# The first class that fits decides, so more specific classes come first.
_CODES: tuple[tuple[type[EdgedError], Status], ...] = (
    (errors.InvalidInput, Status.INVALID_ARGUMENT),
    (errors.Unauthenticated, Status.UNAUTHENTICATED),
    (errors.Forbidden, Status.PERMISSION_DENIED),
    (errors.NotFound, Status.NOT_FOUND),
    (errors.AlreadyExists, Status.ALREADY_EXISTS),
    (errors.Refused, Status.FAILED_PRECONDITION),
    (errors.SegmentUnusable, Status.FAILED_PRECONDITION),
    (errors.Quarantined, Status.FAILED_PRECONDITION),  # a retry helps only after an operator has acted
    (errors.NotReady, Status.UNAVAILABLE),
    (errors.HostLost, Status.UNAVAILABLE),
    (errors.Overloaded, Status.RESOURCE_EXHAUSTED),
    (errors.TooLarge, Status.RESOURCE_EXHAUSTED),
    (errors.OutOfSpace, Status.RESOURCE_EXHAUSTED),
    (errors.OutOfMemory, Status.RESOURCE_EXHAUSTED),
    (errors.DeadlineExceeded, Status.DEADLINE_EXCEEDED),
    (errors.Unsupported, Status.UNIMPLEMENTED),
    (errors.Superseded, Status.ABORTED),  # files or libraries changed meanwhile; a retry uses the new ones
    (errors.FrameSkipped, Status.ABORTED),  # in a unary call: the client reused the picture's shared memory
    (errors.FamilyFailed, Status.INTERNAL),  # another package is at fault, not the request
    # The runtime failed on these inputs, nearly always because of values (an index out of range, a division by zero).
    (errors.EngineUnusable, Status.INVALID_ARGUMENT),
)


def status_of(error: EdgedError) -> Status:
    """Return the gRPC status code of an error of edged."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Status.INTERNAL)


# The HTTP status of each code; other codes are 500.
_HTTP = {
    Status.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    Status.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    Status.CANCELLED: HTTPStatus.BAD_REQUEST,
    Status.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    Status.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    Status.NOT_FOUND: HTTPStatus.NOT_FOUND,
    Status.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    Status.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    Status.ABORTED: HTTPStatus.CONFLICT,
    Status.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    Status.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.RESOURCE_EXHAUSTED: HTTPStatus.SERVICE_UNAVAILABLE,
    Status.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}


def http_of(code: Status, error: Exception | None = None) -> HTTPStatus:
    """Return the HTTP status of a gRPC code; `error` distinguishes errors with the same code."""
    if isinstance(error, errors.TooLarge):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if isinstance(error, errors.ClientLimited):
        return HTTPStatus.TOO_MANY_REQUESTS
    return _HTTP.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)


def describe(error: Exception) -> tuple[Status, str]:
    """Return the gRPC status and the one-line message of any exception. An exception that edged did not expect is
    logged; its text is not sent."""
    if isinstance(error, EdgedError):
        return status_of(error), str(error)
    _LOG.error("a call gets the status INTERNAL because of an unexpected error", exc_info=error)
    return Status.INTERNAL, f"edged failed unexpectedly ({type(error).__name__}); see its log"


def error_code(error: Exception) -> ErrorCode:
    """Return the error code that programs test (docs/errors.md); INTERNAL unless `error` is an EdgedError."""
    return error.code if isinstance(error, EdgedError) else ErrorCode.INTERNAL


def trailing(error: Exception, status: Status, message: str) -> Metadata:
    """Return the trailing metadata of a call that ends with `status` because of `error`."""
    info = status_pb2.ErrorInfo(reason=error_code(error).value, domain=_DOMAIN)
    detail = status_pb2.Detail(type_url=_ERROR_INFO, value=info.SerializeToString())
    repeated = message if len(message) <= _LONGEST else ""
    details = status_pb2.Status(code=status.value, message=repeated, details=[detail])
    found: Metadata = ((_DETAILS, details.SerializeToString()),)
    if isinstance(error, errors.ClientLimited):
        # When to try again, as gRPC clients read it (https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
        return (*found, ("grpc-retry-pushback-ms", str(math.ceil(error.seconds * 1e3))))
    return found
