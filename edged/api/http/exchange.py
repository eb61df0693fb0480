"""What an HTTP request says and what it is answered, without the server that carried them. Pure."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

import msgspec

from edged.decoding import explain, ready
from edged.errors import ErrorCode, InvalidInput
from edged.files import NOT_JSON

Part: TypeAlias = "bytes | memoryview"
Headers: TypeAlias = "tuple[tuple[str, str], ...]"

JSON = "application/json"
_encoder = msgspec.json.Encoder()
T = TypeVar("T")


class Ask(msgspec.Struct, frozen=True):
    """A request. Names of headers are in small letters; `peer` is the client as gRPC names it, `unix:` or `ipv4:...`.

    `path` is as sent, with its escapes; `query` has the last value of each name.
    """

    method: str
    path: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    body: bytes = b""
    peer: str = "unix:"


class Answer(msgspec.Struct, frozen=True):
    """A response. Its parts follow each other; content-length is added by whoever sends it."""

    status: HTTPStatus = HTTPStatus.OK
    parts: tuple[Part, ...] = ()
    headers: Headers = ()

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


DONE = Answer()


def told(value: Any, status: HTTPStatus = HTTPStatus.OK, headers: Headers = ()) -> Answer:
    """A value as JSON."""
    return Answer(status, (_encoder.encode(value),), (("content-type", JSON), *headers))


def failed(status: HTTPStatus, code: ErrorCode, message: str, headers: Headers = ()) -> Answer:
    """An error: one line in `error`, as the protocol has it, and edged's code (docs/errors.md)."""
    return told({"error": message, "code": code.value}, status, headers)


def wanted(body: bytes, kind: type[T], what: str) -> T:
    """The JSON of a body, which may be empty where every field may be left out. InvalidInput says what is wrong."""
    try:
        return msgspec.json.decode(body or b"{}", type=ready(kind))
    except NOT_JSON as error:
        raise InvalidInput(f"{what} cannot be used: {explain(error)}") from None


def decoded(key: str, value: object) -> bytes:
    """The bytes of a parameter in base64. InvalidInput for what is none."""
    try:
        if isinstance(value, str):
            return b64decode(value, validate=True)
    except ValueError:
        pass
    raise InvalidInput(f"parameter {key[:60]!r} is not base64")
