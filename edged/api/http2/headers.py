"""Headers of gRPC calls: decoded from HPACK (RFC 7541) by the library hpack, encoded without a table.

Format: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from enum import IntEnum
from typing import TypeAlias
from urllib.parse import quote

import hpack
import msgspec

from edged.api.http2.frames import Code, ConnectionFault
from edged.decoding import varint

Metadata: TypeAlias = "tuple[tuple[str, str | bytes], ...]"

MOST_BLOCK = 24 << 10  # bytes of one call's encoded headers; more ends the connection
_MOST_LIST = 64 << 10  # bytes of decoded headers, counted as in RFC 9113, section 6.5.2; more ends the connection
MOST_METADATA = 16 << 10  # bytes counted in the same way; more fails the call
_MOST_KNOWN = 16  # limit of remembered blocks
_MOST_REMEMBERED = 2 << 10  # bytes; a block with more metadata is not remembered
_OVERHEAD = 32
_INDEXED = frozenset(range(0x81, 0xFF))  # bytes that each stand for a whole field of the HPACK table
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_NOT_METADATA = frozenset(
    {"te", "content-type", "grpc-timeout", "grpc-encoding", "grpc-accept-encoding", "grpc-message-type"}
)


class Status(IntEnum):
    """How a call ends: https://github.com/grpc/grpc/blob/master/doc/statuscodes.md"""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Head(msgspec.Struct, frozen=True):
    """The headers of a call. `timeout` is in seconds, None for no timeout. `status` is OK if the call can be answered;
    otherwise `status` and `problem` say why not. `http` is 200, or the HTTP status for a client that does not use
    gRPC."""

    path: str = ""
    metadata: Metadata = ()
    timeout: float | None = None
    authorization: str | None = None
    status: Status = Status.OK
    problem: str = ""
    http: int = 200


class MalformedHead(Exception):
    """Headers that no HTTP/2 client may send; the stream is reset."""


class HeadDecoder:
    """Decodes the header blocks of one connection, in the order in which they arrive."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(max_header_list_size=_MOST_LIST)
        self._known: dict[bytes, Head] = {}  # by block, for blocks without literals; cleared if the HPACK table changes

    def decode(self, block: bytes) -> Head:
        """Return the headers of a call. Raises MalformedHead, or ConnectionFault if HPACK decoding fails."""
        found = self._known.get(block)
        if found is None:
            fields = self.fields(block)
            found = read_head(fields)
            if _INDEXED.issuperset(block) and len(self._known) < _MOST_KNOWN and _is_small(found.metadata):
                self._known[block] = found
        return found

    def fields(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Return the header fields in a block, which can also be a block of trailers. Raises ConnectionFault."""
        if not _INDEXED.issuperset(block):
            self._known.clear()
        try:
            return [(field[0], field[1]) for field in self._decoder.decode(block, raw=True)]
        except hpack.OversizedHeaderListError:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "headers that are too large") from None
        except (hpack.HPACKError, UnicodeError, IndexError, ValueError):
            raise ConnectionFault(Code.COMPRESSION_ERROR, "headers that HPACK cannot decode") from None


def _is_small(metadata: Metadata) -> bool:
    return sum(len(name) + len(value) for name, value in metadata) <= _MOST_REMEMBERED


def read_head(fields: Iterable[tuple[bytes, bytes]]) -> Head:
    """Return the headers of a call from their fields. Raises MalformedHead."""
    pseudo: dict[str, bytes] = {}
    metadata: list[tuple[str, str | bytes]] = []
    authorization: list[str] = []
    content_type = encoding = ""
    timeout: float | None = None
    size, is_regular, problem = 0, False, ""
    for raw_name, raw in fields:
        size += len(raw_name) + len(raw) + _OVERHEAD
        name = _name(raw_name)
        if name.startswith(":"):
            if is_regular or name in pseudo or name not in (":method", ":scheme", ":path", ":authority"):
                raise MalformedHead
            pseudo[name] = raw
            continue
        is_regular = True
        if name in ("connection", "transfer-encoding", "upgrade", "keep-alive", "proxy-connection"):
            raise MalformedHead
        value = raw.decode("latin-1")
        if name == "content-type":
            content_type = value
        elif name == "grpc-encoding":
            encoding = value
        elif name == "grpc-timeout":
            timeout, problem = _timeout(value), problem
            problem = problem if timeout is not None else "the header 'grpc-timeout' is malformed"
        if name in _NOT_METADATA:
            continue
        if name.endswith("-bin"):
            metadata += [(name, each) for each in _binary(value)]
            continue
        if not value.isascii() or not value.isprintable():
            problem = problem or f"the header {name!r} is not printable ASCII"
            continue
        if name == "authorization":
            authorization.append(value)
        metadata.append((name, value))
    if not pseudo.keys() >= {":method", ":scheme", ":path"}:
        raise MalformedHead
    shown = ", ".join(authorization) if authorization else None  # several headers together are not a valid token
    path = pseudo[":path"].decode("latin-1")
    head = Head(path, tuple(metadata), timeout, shown)
    if pseudo[":method"] != b"POST":
        return msgspec.structs.replace(head, status=Status.INTERNAL, problem="the method is not POST", http=405)
    if not content_type.startswith("application/grpc"):
        return msgspec.structs.replace(
            head, status=Status.UNKNOWN, problem="the content-type is not application/grpc", http=415
        )
    if size > MOST_METADATA:
        problem = f"the call's metadata has {size} bytes; send at most {MOST_METADATA}"
        return msgspec.structs.replace(head, status=Status.RESOURCE_EXHAUSTED, problem=problem)
    if encoding not in ("", "identity"):
        problem = f"messages compressed with {encoding[:20]} are not accepted; send them uncompressed"
        return msgspec.structs.replace(head, status=Status.UNIMPLEMENTED, problem=problem)
    if problem:
        return msgspec.structs.replace(head, status=Status.INTERNAL, problem=problem)
    return head


def _name(raw: bytes) -> str:
    try:
        name = raw.decode("ascii")
    except UnicodeDecodeError:
        raise MalformedHead from None
    if not name or name != name.lower() or not name.isprintable() or " " in name:
        raise MalformedHead
    return name


def _timeout(value: str) -> float | None:
    digits, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not (digits.isascii() and digits.isdecimal()) or len(digits) > 8:
        return None
    return int(digits) * _UNITS[unit]


def _binary(value: str) -> Iterable[bytes]:
    for each in value.split(","):
        try:
            yield base64.b64decode(each + "=" * (-len(each) % 4), validate=True)
        except ValueError:  # binascii.Error, or a value that is not ASCII
            raise MalformedHead from None


# -- sent headers ------------------------------------------------------------------------------------------------------


def field(name: str, value: str | bytes) -> bytes:
    """Return a literal field without indexing (RFC 7541, section 6.2.2). If the name ends in -bin, the value is encoded
    in base64."""
    if name.endswith("-bin"):
        raw = value.encode() if isinstance(value, str) else value
        value = base64.b64encode(raw).rstrip(b"=")
    data = value.encode("ascii") if isinstance(value, str) else value
    return b"\0" + _length(len(name)) + name.encode("ascii") + _length(len(data)) + data


def _length(value: int) -> bytes:
    return bytes([value]) if value < 127 else b"\x7f" + varint(value - 127)


_STATUS_200 = b"\x88"  # an entry of the static table
# The fields before the first message.
BEGIN = _STATUS_200 + field("content-type", "application/grpc") + field("grpc-accept-encoding", "identity")
END_OK = field("grpc-status", "0")  # the fields after the last message of a successful call


def end(status: Status, message: str, metadata: Metadata = ()) -> bytes:
    """Return the header fields that follow the last message."""
    found = field("grpc-status", str(status.value))
    if message:
        found += field("grpc-message", quote(message, safe=_AS_IT_IS))
    return found + b"".join(field(name, value) for name, value in metadata)


_AS_IT_IS = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def not_grpc(http: int) -> bytes:
    """Return all header fields of the response to a client that does not use gRPC."""
    return field(":status", str(http)) + field("content-type", "text/plain")
