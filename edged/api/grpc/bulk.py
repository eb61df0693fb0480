"""What a large message may consist of: contents, and little else. Pure.

Protobuf parses a message in one go, with Python's lock held, and makes an object of two bytes on the wire: 30 MiB of
empty fields keep everyone waiting for seconds and take gigabytes. So a message that is not small is looked at first,
field by field. What are pictures, tensors or files in it is passed over, and the rest has to be small.
Format: https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from google.protobuf.message import Message

from edged.errors import InvalidInput
from edged.proto import cameras_pb2 as cameras
from edged.proto import open_inference_pb2 as inference
from edged.proto import operations_pb2 as operations

SMALL = 128 << 10  # bytes that are parsed as they come, and that may be left beside contents
_MOST_FIELDS = 4096  # of one message within another
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types

# Which fields of a message hold contents, by number: what share of their bytes counts as something else, or which
# fields within them do.
Contents: TypeAlias = "Mapping[int, float | Contents]"

_FREE, _PARSED = 0.0, 1 / 32  # copied, or made into numbers one by one
_RAW: Contents = {cameras.RawImage.DATA_FIELD_NUMBER: _FREE}
_VALUES = inference.InferTensorContents
_COPIED = (_VALUES.FP32_CONTENTS_FIELD_NUMBER, _VALUES.FP64_CONTENTS_FIELD_NUMBER, _VALUES.BYTES_CONTENTS_FIELD_NUMBER)
_TENSOR: Contents = {
    inference.ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER: {
        number: _FREE if number in _COPIED else _PARSED for number in _VALUES.DESCRIPTOR.fields_by_number
    }
}
_FILE: Contents = {2: {inference.ModelRepositoryParameter.BYTES_PARAM_FIELD_NUMBER: _FREE}}  # the value in a map
CONTENTS: Mapping[type[Message], Contents] = {
    cameras.Frame: {cameras.Frame.ENCODED_FIELD_NUMBER: _FREE, cameras.Frame.RAW_FIELD_NUMBER: _RAW},
    inference.ModelInferRequest: {
        inference.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER: _FREE,
        inference.ModelInferRequest.INPUTS_FIELD_NUMBER: _TENSOR,
    },
    inference.RepositoryModelLoadRequest: {inference.RepositoryModelLoadRequest.PARAMETERS_FIELD_NUMBER: _FILE},
    operations.AddModelRequest: {operations.AddModelRequest.CHUNK_FIELD_NUMBER: _FREE},
}


def require_parsable(data: bytes | memoryview, kind: type[Message]) -> None:
    """InvalidInput for the bytes of a message of that kind that would take long to parse."""
    if len(data) <= SMALL:
        return
    beside = _beside(memoryview(data), CONTENTS.get(kind, {}))
    if beside is None or beside > SMALL:
        name = cast(Any, kind).DESCRIPTOR.name
        raise InvalidInput(
            f"the {name} has {len(data)} bytes that are not raw contents alone; send tensors as raw contents,"
            f" and at most {SMALL} bytes of anything else"
        )


def _beside(data: memoryview, contents: Contents) -> float | None:
    """How many bytes count as no contents; None for too many fields, or for what is no message."""
    total, position = 0.0, 0
    for _ in range(_MOST_FIELDS):
        if position == len(data):
            return total
        tag, position = _varint(data, position)
        wire = tag & 7
        if wire == _DELIMITED:
            size, position = _varint(data, position)
            ends = position + size
            if position < 0 or ends > len(data):
                return None
            within = contents.get(tag >> 3, 1.0)
            found = _beside(data[position:ends], within) if isinstance(within, Mapping) else size * within
            if found is None:
                return None
            total += found
            position = ends
        elif wire in (_FIXED32, _FIXED64):
            position += 4 if wire == _FIXED32 else 8
        elif wire == _VARINT:
            _, position = _varint(data, position)
        else:
            return None
        if not 0 <= position <= len(data):
            return None
    return None


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A number, and where it ends; -1 if there is none."""
    value = 0
    if position >= 0:
        for index, byte in enumerate(data[position : position + 10]):
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return value, position + index + 1
    return 0, -(1 << 62)
