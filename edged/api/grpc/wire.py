"""Reads and writes large protobuf messages, in part without the protobuf library.

Large messages: protobuf parses a whole message while it holds the GIL, and two bytes on the wire can become an object.
So 30 MiB of empty fields would block the daemon for seconds and use gigabytes. Therefore a large message is measured
first. Apart from its contents (pictures, sound, tensors and files), the message must be small.

Inference: protobuf copies every `bytes` field when it parses and when it writes. Here a request is parsed without its
raw contents, and a camera's frame without its picture. Contents and picture stay views of the received bytes. A
response is written from views of its contents and from its remaining fields, without further copies.
Format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import msgspec
from google.protobuf.message import DecodeError, Message

from edged.decoding import varint
from edged.errors import InvalidInput, TooLarge
from edged.proto import cameras_pb2 as cameras
from edged.proto import language_pb2 as language
from edged.proto import open_inference_pb2 as pb
from edged.proto import operations_pb2 as operations

Received = TypeVar("Received", bound=Message)
# Bytes. A larger message is measured before parsing, and may have at most this many bytes besides its contents.
MEASURED_ABOVE = 128 << 10
_MOST_PARSED_FIELDS = 4096  # limit of fields, in a message and in its nested messages with contents
_VARINT, _FIXED64, _FIXED32 = 0, 1, 5  # wire types, as is _DELIMITED

# The fields of a message that hold contents, by field number. The value is the share (0 to 1) of the field's bytes that
# counts towards the limit `MEASURED_ABOVE`. For a field that is itself a message, the value is that message's mapping.
ContentFields: TypeAlias = "Mapping[int, float | ContentFields]"

_FREE, _PARSED = 0.0, 1 / 32  # for fields that protobuf copies, and for fields that it parses number by number
_RAW: ContentFields = {cameras.RawImage.DATA_FIELD_NUMBER: _FREE}
_SOUND: ContentFields = {cameras.Samples.DATA_FIELD_NUMBER: _FREE}
_VALUES = pb.InferTensorContents
_COPIED = (_VALUES.FP32_CONTENTS_FIELD_NUMBER, _VALUES.FP64_CONTENTS_FIELD_NUMBER, _VALUES.BYTES_CONTENTS_FIELD_NUMBER)
_TENSOR: ContentFields = {
    pb.ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER: {
        number: _FREE if number in _COPIED else _PARSED for number in _VALUES.DESCRIPTOR.fields_by_number
    }
}
_FILE: ContentFields = {2: {pb.ModelRepositoryParameter.BYTES_PARAM_FIELD_NUMBER: _FREE}}  # 2: the value of a map entry
CONTENT_FIELDS: Mapping[type[Message], ContentFields] = {
    cameras.Frame: {
        cameras.Frame.ENCODED_FIELD_NUMBER: _FREE,
        cameras.Frame.RAW_FIELD_NUMBER: _RAW,
        cameras.Frame.SAMPLES_FIELD_NUMBER: _SOUND,
    },
    pb.ModelInferRequest: {
        pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER: _FREE,
        pb.ModelInferRequest.INPUTS_FIELD_NUMBER: _TENSOR,
    },
    pb.RepositoryModelLoadRequest: {pb.RepositoryModelLoadRequest.PARAMETERS_FIELD_NUMBER: _FILE},
    operations.AddModelRequest: {operations.AddModelRequest.CHUNK_FIELD_NUMBER: _FREE},
    operations.AddToGalleryRequest: {
        operations.AddToGalleryRequest.PICTURES_FIELD_NUMBER: {operations.GalleryPicture.ENCODED_FIELD_NUMBER: _FREE}
    },
    language.ChatRequest: {
        language.ChatRequest.MESSAGES_FIELD_NUMBER: {language.ChatMessage.PICTURES_FIELD_NUMBER: _FREE}
    },
}


def parse(data: bytes, kind: type[Received]) -> Received:
    """Parse a message. Raises InvalidInput for malformed bytes, which gRPC itself would report as a server error."""
    require_parsable(data, kind)
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.name
        raise InvalidInput(f"cannot parse the request as {name}; send the message that the protos define") from None


def require_parsable(data: bytes | memoryview, kind: type[Message]) -> None:
    """Raise InvalidInput if a message of type `kind` in `data` would take long to parse."""
    if len(data) <= MEASURED_ABOVE:
        return
    rest = _without_contents(memoryview(data), CONTENT_FIELDS.get(kind, {}), iter(range(_MOST_PARSED_FIELDS)))
    if rest is None or rest > MEASURED_ABOVE:
        name = cast(Any, kind).DESCRIPTOR.name
        raise InvalidInput(
            f"the {name} of {len(data)} bytes is malformed, has too many fields, or has more than"
            f" {MEASURED_ABOVE} bytes besides pictures, sound, tensors and files; send tensors in raw_input_contents"
        )


def _without_contents(data: memoryview, contents: ContentFields, fields: Iterator[int]) -> float | None:
    """Return the number of bytes that count towards the limit `MEASURED_ABOVE`; None if the message is malformed or has
    more fields than `fields` has items. Takes one item of `fields` for each field of the message."""
    total, position = 0.0, 0
    while position < len(data):
        if next(fields, None) is None:
            return None
        tag, position = _read_varint(data, position)
        wire = tag & 7
        if wire == _DELIMITED:
            size, position = _read_varint(data, position)
            ends = position + size
            if position < 0 or ends > len(data):
                return None
            within = contents.get(tag >> 3, 1.0)
            if isinstance(within, Mapping):
                found = _without_contents(data[position:ends], within, fields)
                if found is None:
                    return None
                total += found
            else:
                total += size * within
            position = ends
        elif wire in (_FIXED32, _FIXED64):
            position += 4 if wire == _FIXED32 else 8
        elif wire == _VARINT:
            _, position = _read_varint(data, position)
        else:
            return None
        if not 0 <= position <= len(data):
            return None
    return total


Contents: TypeAlias = "bytes | memoryview"

_MOST_FIELDS = 256  # protobuf parses the whole of a message with more fields
_LARGEST = (1 << 31) - 1  # limit of a protobuf message, in bytes
_DELIMITED = 2  # the wire type of fields with a length
_CONTINUES = 0x80  # in a byte of a number: more bytes follow
_RAW_INPUT = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER << 3 | _DELIMITED
_ID = pb.ModelInferRequest.ID_FIELD_NUMBER << 3 | _DELIMITED
_LONG = 1 << 10  # bytes; heads that are longer are not kept
_RAW_OUTPUT = bytes([pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | _DELIMITED])
_ENCODED, _RAW_IMAGE, _SHARED_IMAGE, _SAMPLES = (
    number << 3 | _DELIMITED
    for number in (
        cameras.Frame.ENCODED_FIELD_NUMBER,
        cameras.Frame.RAW_FIELD_NUMBER,
        cameras.Frame.SHARED_FIELD_NUMBER,
        cameras.Frame.SAMPLES_FIELD_NUMBER,
    )
)
# The tag of the contents inside a raw image or samples, by the tag of the image or samples in the frame.
_DESCRIBED = {
    _RAW_IMAGE: cameras.RawImage.DATA_FIELD_NUMBER << 3 | _DELIMITED,
    _SAMPLES: cameras.Samples.DATA_FIELD_NUMBER << 3 | _DELIMITED,
}
_INFER_RESPONSE = bytes([pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | _DELIMITED])


class Request(msgspec.Struct, frozen=True):
    """A request: the message without raw contents, the raw contents, and the id. `head` has the bytes of the message
    without raw contents and id, so requests with equal heads differ only in these two. The message of such requests is
    shared: do not change it, and do not read its id. `head` is empty if the bytes are not known."""

    message: pb.ModelInferRequest
    raw: tuple[Contents, ...]
    id: str
    head: bytes = b""

    @classmethod
    def of(cls, message: pb.ModelInferRequest) -> Request:
        """Return the request for a message that contains its raw contents and its id."""
        return cls(message, tuple(message.raw_input_contents), message.id)


def read(data: bytes) -> Request:
    """Parse a request; raw contents are views of `data`. Raises InvalidInput."""
    if (found := _split(memoryview(data))) is None:
        return Request.of(parse(data, pb.ModelInferRequest))
    head, raw, identifier = found
    if len(head) > _LONG:
        return Request(parse(head, pb.ModelInferRequest), raw, identifier)
    return Request(_parsed(head), raw, identifier, head)


@functools.lru_cache(256)
def _parsed(head: bytes) -> pb.ModelInferRequest:
    """Parse the head of a request. Clients send the same head again and again."""
    return parse(head, pb.ModelInferRequest)


class FrameRequest(msgspec.Struct, frozen=True):
    """A camera's frame. `picture` has the encoded picture, the pixels or the sound samples; empty if the picture lies
    in shared memory or is missing. `message` may lack the bytes that `picture` has."""

    message: cameras.Frame
    picture: Contents = b""

    @classmethod
    def of(cls, message: cameras.Frame) -> FrameRequest:
        """Return the frame for a message that contains its picture."""
        return cls(message, message.encoded or message.raw.data or message.samples.data)


def read_frame(data: bytes) -> FrameRequest:
    """Parse a frame; a large picture is a view of `data`. Raises InvalidInput."""
    if len(data) > MEASURED_ABOVE and (found := _split_frame(memoryview(data))) is not None:
        rest, picture = found
        if len(rest) <= MEASURED_ABOVE:
            return FrameRequest(parse(rest, cameras.Frame), picture)
    return FrameRequest.of(parse(data, cameras.Frame))


def write(message: pb.ModelInferResponse, raw: Sequence[Contents], *, streamed: bool = False) -> bytes:
    """Return the bytes of a response with its raw contents, each copied once. `streamed` wraps the response for
    ModelStreamInfer.

    Raises TooLarge if the response exceeds the largest message of protobuf.
    """
    parts: list[Contents] = [message.SerializeToString()]
    for contents in raw:
        parts += (_RAW_OUTPUT + varint(len(contents)), contents)
    size = sum(map(len, parts))
    if size > _LARGEST - 16:
        raise TooLarge(
            f"the response has {size} bytes, more than a message can have; request fewer outputs or send smaller inputs"
        )
    if streamed:
        parts.insert(0, _INFER_RESPONSE + varint(size))
    return b"".join(parts)


def _split(data: memoryview) -> tuple[bytes, tuple[memoryview, ...], str] | None:
    """Return a request's bytes without raw contents and id, the raw contents, and the id. None if protobuf should parse
    the whole request."""
    raw: list[memoryview] = []
    others: list[memoryview] = []
    identifier: memoryview | None = None
    position, since = 0, 0  # the start of this field, and the start of the bytes that `others` lacks
    for _ in range(_MOST_FIELDS):
        if position + 1 >= len(data):
            break
        tag, length, begins = data[position], data[position + 1], position + 2
        if tag & (_CONTINUES | 7) != _DELIMITED:
            return None
        if length & _CONTINUES:
            length, begins = _read_varint(data, position + 1, 5)
        ends = begins + length
        if begins < 0 or ends > len(data):
            return None
        if tag in (_RAW_INPUT, _ID):
            others.append(data[since:position])
            since = ends
            if tag == _ID:
                if identifier is not None:  # only protobuf checks that the first id is text
                    return None
                identifier = data[begins:ends]
            else:
                raw.append(data[begins:ends])
        position = ends
    if position != len(data) or not raw:
        return None
    others.append(data[since:])
    head, identifier = b"".join(others), identifier or data[:0]
    if len(head) + len(identifier) > MEASURED_ABOVE:  # the whole request is measured
        return None
    try:
        return head, tuple(raw), str(identifier, "utf-8")
    except UnicodeDecodeError:
        return None


def _split_frame(data: memoryview) -> tuple[bytes, memoryview] | None:
    """Return a frame's bytes with an empty picture, and the picture. None if protobuf should parse the whole frame: for
    example, a frame may have two images, which only protobuf can merge."""
    image = _only_field(data, (_ENCODED, _RAW_IMAGE, _SHARED_IMAGE, _SAMPLES))
    if image is None or image.tag == _SHARED_IMAGE:
        return None
    about, picture = b"", data[image.begins : image.ends]
    if image.tag in _DESCRIBED:
        contents = _only_field(picture, (_DESCRIBED[image.tag],))
        if contents is None:
            return None
        about = b"".join((picture[: contents.at], picture[contents.ends :]))
        picture = picture[contents.begins : contents.ends]
    return b"".join((data[: image.at], varint(image.tag), varint(len(about)), about, data[image.ends :])), picture


class _Field(NamedTuple):
    """A field with a length: its tag, and the positions where the field starts and where its contents begin and end."""

    tag: int
    at: int
    begins: int
    ends: int


def _only_field(data: memoryview, tags: Collection[int]) -> _Field | None:
    """Return the only field with one of the tags; None if there is no such field, if there are several, or if the
    message is malformed."""
    found: _Field | None = None
    position = 0
    for _ in range(_MOST_FIELDS):
        if position == len(data):
            return found
        tag, begins = _read_varint(data, position, 5)
        match tag & 7:
            case 2:
                length, begins = _read_varint(data, begins, 5)
                ends = begins + length
            case 0:
                _, ends = _read_varint(data, begins)
            case 1:
                ends = begins + 8
            case 5:
                ends = begins + 4
            case _:
                return None
        if begins < 0 or not 0 <= ends <= len(data):
            return None
        if tag in tags:
            if found is not None:
                return None
            found = _Field(tag, position, begins, ends)
        position = ends
    return None


def _read_varint(data: memoryview, position: int, longest: int = 10) -> tuple[int, int]:
    """Return a number of up to `longest` bytes, and the position after it; the position is negative if the number is
    malformed."""
    value = 0
    if position >= 0:
        for index, byte in enumerate(data[position : position + longest]):
            value |= (byte & 0x7F) << 7 * index
            if byte < _CONTINUES:
                return value, position + index + 1
    return 0, -(1 << 62)
