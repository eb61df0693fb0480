"""Requests and responses of inference as bytes on the wire, with raw contents that are not copied on the way.

Protobuf copies every `bytes` field when it parses and when it writes. Here a request is a message without its raw
contents, which stay views of the bytes that gRPC delivered; a response is written from its head and views of its
contents, wherever they lie.
Format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from edged.api.grpc.bulk import require_parsable
from edged.errors import InvalidInput, TooLarge
from edged.proto import open_inference_pb2 as pb

Contents: TypeAlias = "bytes | memoryview"

_SMALL = 16 << 10  # below this protobuf's copies cost less than looking for the contents
_MOST_FIELDS = 256  # of a request that are looked at one by one; a message of more is left to protobuf
_LARGEST = (1 << 31) - 1  # bytes of any protobuf message
_DELIMITED = 2  # the wire type of what has a length
_RAW_INPUT = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUT = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | _DELIMITED])
_INFER_RESPONSE = bytes([pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | _DELIMITED])


class Request(msgspec.Struct, frozen=True):
    """A request: the message without raw contents, and they."""

    message: pb.ModelInferRequest
    raw: tuple[Contents, ...] = ()

    @classmethod
    def of(cls, message: pb.ModelInferRequest) -> Request:
        """A message that was parsed with its raw contents."""
        return cls(message, tuple(message.raw_input_contents))


def read(data: bytes) -> Request:
    """A request from its bytes, which its raw contents are views of; InvalidInput when they are none."""
    if len(data) >= _SMALL and (found := _split(memoryview(data))) is not None:
        rest, raw = found
        return Request(_parse(rest), raw)
    return Request.of(_parse(data))


def write(message: pb.ModelInferResponse, raw: Sequence[Contents], *, streamed: bool = False) -> bytes:
    """The bytes of a response with its raw contents, each copied once; `streamed`: of the stream's message around it.

    TooLarge where no message can be so large.
    """
    parts: list[Contents] = [message.SerializeToString()]
    for contents in raw:
        parts += (_RAW_OUTPUT + _varint(len(contents)), contents)
    size = sum(map(len, parts))
    if size > _LARGEST - 16:
        raise TooLarge(
            f"the response has {size} bytes, more than a message can; ask for fewer outputs or smaller inputs"
        )
    if streamed:
        parts.insert(0, _INFER_RESPONSE + _varint(size))
    return b"".join(parts)


def _parse(data: bytes) -> pb.ModelInferRequest:
    require_parsable(data, pb.ModelInferRequest)
    try:
        return pb.ModelInferRequest.FromString(data)
    except DecodeError:
        raise InvalidInput(
            "the bytes of the call are no ModelInferRequest; use a client of the same protocol"
        ) from None


def _split(data: memoryview) -> tuple[bytes, tuple[memoryview, ...]] | None:
    """The message's other fields, and its raw contents; None for what is better left to protobuf."""
    raw: list[memoryview] = []
    others: list[memoryview] = []
    position, since = 0, 0  # where this field begins; since where nothing but other fields came
    for _ in range(_MOST_FIELDS):
        if position == len(data):
            others.append(data[since:])
            return (b"".join(others), tuple(raw)) if raw else None
        tag, begins = _read_varint(data, position)
        if tag & 7 != _DELIMITED or begins < 0:
            return None
        length, begins = _read_varint(data, begins)
        ends = begins + length
        if begins < 0 or ends > len(data):
            return None
        if tag >> 3 == _RAW_INPUT:
            others.append(data[since:position])
            raw.append(data[begins:ends])
            since = ends
        position = ends
    return None


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number of up to five bytes, and where it ends; -1 where there is none."""
    value = 0
    for index, byte in enumerate(data[position : position + 5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    return 0, -1


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
