"""The one table from edged's errors to gRPC status codes, and from those to HTTP's."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus

import grpc

from edged import errors
from edged.errors import EdgedError

_LOG = logging.getLogger("edged.api")

# Trailing metadata with the name of the error's class, since several share a code.
ERROR_NAME = "edged-error"

# The first class that fits decides, so the more particular come first.
_CODES: tuple[tuple[type[EdgedError], grpc.StatusCode], ...] = (
    (errors.InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.Forbidden, grpc.StatusCode.PERMISSION_DENIED),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (errors.Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.SegmentUnusable, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.Quarantined, grpc.StatusCode.FAILED_PRECONDITION),  # trying again helps only after somebody did something
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


def code_of(error: EdgedError) -> grpc.StatusCode:
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
    """The HTTP status of a gRPC code; `error` tells apart what shares one."""
    if isinstance(error, errors.TooLarge):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    if isinstance(error, errors.ClientLimited):
        return HTTPStatus.TOO_MANY_REQUESTS
    return _HTTP.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)


def describe(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Code and one line for any exception. One that edged did not raise is logged, and told without its details."""
    if isinstance(error, EdgedError):
        return code_of(error), str(error)
    _LOG.error("a call failed with an unexpected error", exc_info=error)
    return grpc.StatusCode.INTERNAL, f"edged failed on this call ({type(error).__name__}); its log tells more"


def named(error: Exception) -> tuple[tuple[str, str], ...]:
    """Trailing metadata for the status of an exception."""
    if not isinstance(error, EdgedError):
        return ()
    name = (ERROR_NAME, type(error).__name__)
    if isinstance(error, errors.ClientLimited):
        # When to come again, as gRPC's clients understand it (https://github.com/grpc/proposal/blob/master/A6-client-retries.md).
        return (name, ("grpc-retry-pushback-ms", str(math.ceil(error.seconds * 1e3))))
    return (name,)
