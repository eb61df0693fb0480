"""HTTP requests and responses, independent of the server that carries them, and their JSON."""

from __future__ import annotations

import asyncio
import ipaddress
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar

import msgspec
from google.protobuf.message import Message

from edged.api.http.streamed import Streamed
from edged.decoding import explain, ready
from edged.errors import ErrorCode, InvalidInput
from edged.files import NOT_JSON

Part: TypeAlias = "bytes | memoryview"
Headers: TypeAlias = "tuple[tuple[str, str], ...]"

JSON = "application/json"
_encoder = msgspec.json.Encoder()
T = TypeVar("T")


class HttpRequest(msgspec.Struct, frozen=True):
    """A request. Header names are in lower case; `peer` is the client as gRPC names it.

    `path` is as sent, with its escapes; `query` has the last value of each name.
    """

    method: str
    path: str
    headers: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    body: bytes = b""
    peer: str = "unix:"


class HttpResponse(msgspec.Struct, frozen=True):
    """A response. Its body is the joined `parts`; the sender adds content-length. If `stream` is set, the body is what
    the stream yields instead, and the sender closes the stream."""

    status: HTTPStatus = HTTPStatus.OK
    parts: tuple[Part, ...] = ()
    headers: Headers = ()
    stream: Streamed | None = None

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))


OK = HttpResponse()


def json_response(value: Any, status: HTTPStatus = HTTPStatus.OK, headers: Headers = ()) -> HttpResponse:
    """Return a response with a JSON body."""
    return HttpResponse(status, (_encoder.encode(value),), (("content-type", JSON), *headers))


def error_response(status: HTTPStatus, code: ErrorCode, message: str, headers: Headers = ()) -> HttpResponse:
    """Return an error response: one line in `error`, as in the protocol, and edged's code (docs/errors.md)."""
    return json_response({"error": message, "code": code.value}, status, headers)


def parse_json(body: bytes, kind: type[T], what: str) -> T:
    """Parse a body. The body may be empty if all fields of `kind` have defaults. Raises InvalidInput, whose message
    names `what`."""
    try:
        return msgspec.json.decode(body or b"{}", type=ready(kind))
    except NOT_JSON as error:
        raise InvalidInput(f"cannot parse {what}: {explain(error)}") from None


def decode_base64(key: str, value: object) -> bytes:
    """Return the bytes of a base64 parameter. Raises InvalidInput."""
    try:
        if isinstance(value, str):
            return b64decode(value, validate=True)
    except ValueError:
        pass
    raise InvalidInput(f"parameter {key[:60]!r} is not base64")


def message_fields(message: Message) -> dict[str, Any]:
    """Return a protobuf message as values for JSON: field names as in the proto, 64-bit numbers as numbers.

    A field that is not set has its default value. Unset fields with presence (messages, oneofs, optional) are left out.
    """
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        found[field.name] = _value(field, getattr(message, field.name))
    return found


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        each = field.message_type.fields_by_name["value"]
        return {str(key): _single(each, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_single(field, each) for each in value]
    return _single(field, value)


def _single(field: Any, value: Any) -> Any:
    if isinstance(value, Message):
        return message_fields(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None else known.name
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return value


_LARGE = 1 << 18  # bytes

_threads = ThreadPoolExecutor(1, "edged-http")  # one thread: more would only compete with the event loop for the GIL


async def offload(size: int, work: Callable[[], T]) -> T:
    """Run `work`, which processes `size` bytes. If `size` is large, run it in a thread, so that cameras and the control
    loop do not wait."""
    if size < _LARGE:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_threads, work)


def web_page_refusal(headers: Mapping[str, str], peer: str, any_host: bool = False) -> str | None:
    """Return one line that says why a request for a web page of another site is refused; None if it is allowed.

    A browser on this machine sends requests on behalf of any web page. The header `Origin` shows whether the page is of
    another site. `Host` shows whether the page used another site's name for this machine (DNS rebinding). `peer` is the
    client as gRPC names it. `any_host` also allows a `Host` that is not loopback's, for addresses that other machines
    reach.
    """
    host = headers.get("host", "")
    if not any_host and not peer.startswith("unix:") and host and not _is_here(host):
        return f"header 'Host' is {host[:80]!r}, but this address accepts only localhost or a loopback address"
    origin = headers.get("origin")
    if origin is not None and (not host or origin.partition("://")[2] != host):
        return (
            f"the request comes from a web page of {origin[:80]!r}, not of {host[:80]!r}; use a program, or send no"
            " Origin header"
        )
    return None


def _is_here(host: str) -> bool:
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.rpartition(":")[0] or host
    if name.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
