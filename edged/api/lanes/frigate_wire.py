"""What Frigate's ZMQ detector says and is answered, as of Frigate 0.18. Pure.

A request for a model: one JSON frame `{"model_request": true, "model_name": FILE}`; the answer is JSON. A model's file:
`{"model_data": true, "model_name": FILE}` and its bytes. A picture: `{"shape": [...], "dtype": ..., "model_type": ...}`
and the tensor's bytes in C order; the answer is a float32 tensor [20, 6] of rows
class, score, y_min, x_min, y_max, x_max, 0..1, best first, padded with zeros.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.decoding import explain
from edged.errors import InvalidInput
from edged.vision.detections import Detections

ROWS = 20
NOTHING = bytes(ROWS * 6 * 4)
"""The answer that tells of no object."""

_LONGEST_HEADER = 4096
_LARGEST_SIDE = 16384
_DTYPES = {"uint8": 1, "float32": 4}


class ModelAsked(msgspec.Struct, frozen=True):
    """Frigate asks whether its model is there; it asks once, and believes a no for ever."""

    name: str


class ModelSent(msgspec.Struct, frozen=True):
    """Frigate sends the file of a model that was not there."""

    name: str
    data: memoryview


class Tensor(msgspec.Struct, frozen=True, eq=False):
    """A picture: `pixels` is uint8 or float32, of the layout that the shape has; `model_type` in lower case."""

    pixels: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    model_type: str

    @property
    def is_planar(self) -> bool:
        """[1, channels, height, width] rather than [1, height, width, channels]."""
        return self.pixels.shape[1] in (1, 3)

    @property
    def is_packed(self) -> bool:
        """Bytes, pixel after pixel, as cameras have them."""
        return self.pixels.dtype == np.uint8 and not self.is_planar

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[1 if self.is_planar else 3])

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels."""
        _, a, b, c = self.pixels.shape
        return (c, b) if self.is_planar else (b, a)


Message: TypeAlias = ModelAsked | ModelSent | Tensor


class _Header(msgspec.Struct, frozen=True):
    """Everything that a header may hold; what newer ones add is passed over."""

    model_request: bool = False
    model_data: bool = False
    model_name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    model_type: str = ""


_decoder = msgspec.json.Decoder(_Header)


def parse(frames: Sequence[memoryview]) -> Message:
    """What the frames of one message say; InvalidInput where they say nothing that is known."""
    if not frames or len(frames[0]) > _LONGEST_HEADER:
        raise InvalidInput("the message has no header of Frigate's ZMQ detector")
    try:
        header = _decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the header is not one of Frigate's ZMQ detector: {explain(error)}") from None
    if header.model_request:
        return ModelAsked(header.model_name)
    if len(frames) != 2:
        raise InvalidInput(f"the message has {len(frames)} frames; a header and its bytes are two")
    if header.model_data:
        return ModelSent(header.model_name, frames[1])
    return _tensor(header, frames[1])


def _tensor(header: _Header, data: memoryview) -> Tensor:
    shape, size = header.shape, _DTYPES.get(header.dtype)
    if size is None:
        raise InvalidInput(f"the tensor's dtype is {header.dtype[:20]!r}; set Frigate's input_dtype to int or float")
    sane = len(shape) == 4 and all(0 < side <= _LARGEST_SIDE for side in shape) and shape[0] == 1
    if not sane or not (shape[1] in (1, 3) or shape[3] in (1, 3)):
        raise InvalidInput(f"a tensor {list(shape)[:8]} is no picture; set Frigate's input_tensor to nhwc or nchw")
    if math.prod(shape) * size != len(data):
        wanted = math.prod(shape) * size
        raise InvalidInput(f"the tensor holds {len(data)} bytes, {header.dtype}{list(shape)} takes {wanted}")
    if size == 1:
        return Tensor(np.frombuffer(data, np.uint8).reshape(shape), header.model_type.lower())
    return Tensor(np.frombuffer(data, np.float32).reshape(shape), header.model_type.lower())


def model_answer(known: bool) -> bytes:
    """To ModelAsked."""
    return msgspec.json.encode({"model_available": known, "model_loaded": known})


def saved_answer(saved: bool) -> bytes:
    """To ModelSent."""
    return msgspec.json.encode({"model_saved": saved, "model_loaded": saved})


def rows(found: Detections, width: int, height: int, labels: int) -> bytes:
    """The answer to a picture of width x height pixels. Class ids outside 0..labels-1 are left out: one that its label
    map lacks ends Frigate's camera process."""
    known = (found.class_ids >= 0) & (found.class_ids < labels) & np.isfinite(found.scores)
    known &= np.isfinite(found.boxes).all(axis=1)
    chosen = np.flatnonzero(known)
    chosen = chosen[np.argsort(-found.scores[chosen], kind="stable")][:ROWS]
    table = np.zeros((ROWS, 6), np.float32)
    table[: len(chosen), 0] = found.class_ids[chosen]
    table[: len(chosen), 1] = found.scores[chosen]
    edges = found.boxes[chosen] / np.array((width, height, width, height), np.float32)
    table[: len(chosen), 2:] = np.clip(edges, 0, 1)[:, (1, 0, 3, 2)]
    return table.tobytes()


def model_name(file: str) -> str:
    """The name of edged's model that a file of Frigate's stands for; InvalidInput where nothing is left of it."""
    stem = PurePosixPath(file.replace("\\", "/")).name.removesuffix(".onnx")
    name = re.sub(r"[^\w .+@-]", "_", stem).lstrip(" .+@-")[:128].rstrip()
    if not name:
        raise InvalidInput(f"{file[:80]!r} is no name of a model")
    return name
