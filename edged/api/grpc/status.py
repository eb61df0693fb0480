"""The one table from edged's errors to gRPC status codes, and from those to HTTP's."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus

import grpc

from edged import errors
from edged.errors import EdgedError, ErrorCode
from edged.proto import status_pb2

_LOG = logging.getLogger("edged.api")

# Trailing metadata with a google.rpc.Status, where gRPC libraries look for the details of an error.
_DETAILS = "grpc-status-details-bin"
_ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
_DOMAIN = "edged"
_LONGEST = 2000  # characters of a message that is sent twice: clients take 8 KiB of metadata

# The first class that fits decides, so the more particular come first.
_CODES: tuple[tuple[type[EdgedError], grpc.StatusCode], ...] = (
    (errors.InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.SegmentUnusable, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Quarantined, grpc.StatusCode.FAILED_PRECONDITION),  # a retry helps only after an operator acted
    (errors.NotReady, grpc.StatusCode.UNAVAILABLE),
    (errors.HostLost, grpc.StatusCode.UNAVAILABLE),
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.TooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.OutOfSpace, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.OutOfMemory, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.DeadlineExceeded, grpc.StatusCode.DEADLINE_EXCEEDED),
    (errors.Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    (errors.FrameSkipped, grpc.StatusCode.ABORTED),  # one picture alone, whose place its client used again meanwhile
    # A runtime that cannot run these inputs: nearly always the values (an index out of range, a division by zero).
    (errors.EngineUnusable, grpc.StatusCode.INVALID_ARGUMENT),
)


def status_of(error: EdgedError) -> grpc.StatusCode:
    """The gRPC status code of an error of edged."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


# The HTTP status of a code; what is not here is 500.
_HTTP = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.OUT_OF_RANGE: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.CANCELLED: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS: HTTPStatus.CONFLICT,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    grpc.StatusCode.ABORTED: HTTPStatus.CONFLICT,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.NOT_IMPLEMENTED,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
}


def http_of(code: grpc.StatusCode, error: Exception | None = None) -> HTTPStatus:
    """The HTTP status of a gRPC code; `error` distinguishes errors with the same code."""
    if isinstance(error, errors.TooLarge):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if isinstance(error, errors.ClientLimited):
        return HTTPStatus.TOO_MANY_REQUESTS
    return _HTTP.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)


def describe(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Code and one line for any exception. An unexpected one is logged, and its details are not sent."""
    if isinstance(error, EdgedError):
        return status_of(error), str(error)
    _LOG.error("a call failed with an unexpected error", exc_info=error)
    return grpc.StatusCode.INTERNAL, f"edged failed on this call ({type(error).__name__}); see its log"


def error_code(error: Exception) -> ErrorCode:
    """The code of an exception for programs; INTERNAL if edged did not raise it on purpose."""
    return error.code if isinstance(error, EdgedError) else ErrorCode.INTERNAL


def trailing(error: Exception, status: grpc.StatusCode, message: str) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata for a call that ends with `status` because of `error`."""
    info = status_pb2.ErrorInfo(reason=error_code(error).value, domain=_DOMAIN)
    detail = status_pb2.Detail(type_url=_ERROR_INFO, value=info.SerializeToString())
    repeated = message if len(message) <= _LONGEST else ""
    details = status_pb2.Status(code=int(status.value[0]), message=repeated, details=[detail])
    found: tuple[tuple[str, str | bytes], ...] = ((_DETAILS, details.SerializeToString()),)
    if isinstance(error, errors.ClientLimited):
        # When to try again, as gRPC clients read it (https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
        return (*found, ("grpc-retry-pushback-ms", str(math.ceil(error.seconds * 1e3))))
    return found
