"""What the daemon and an engine host say to each other (MessagePack over ZeroMQ; bulk bytes are in the arena)."""

from __future__ import annotations

import msgspec

from edged.backend.contract import Order
from edged.serving.arena import Span
from edged.vision.family import Recognition, Thresholds

# -- what a frame or a tensor looks like on the link ----------------------------------------------------------------


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """One picture: encoded when `pixel_format` is empty, else raw with its geometry in pixels and bytes."""

    span: Span
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    stride: int = 0


class TensorRef(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: in the arena, or in the message where it did not fit. BYTES are length-prefixed elements."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    span: Span | None = None
    data: bytes = b""


class Times(msgspec.Struct, frozen=True, array_like=True):
    """Milliseconds spent in each step of the host."""

    decode_ms: float = 0.0
    prepare_ms: float = 0.0
    infer_ms: float = 0.0
    postprocess_ms: float = 0.0


# -- to the host ----------------------------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, tag=True):
    session: int
    order: Order
    recognition: Recognition


class Close(msgspec.Struct, frozen=True, tag=True):
    session: int


class Infer(msgspec.Struct, frozen=True, tag=True):
    """A tensor request. `reply` is where outputs go as far as they fit."""

    job: int
    session: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[str, ...] | None
    reply: Span | None


class Detect(msgspec.Struct, frozen=True, tag=True):
    """A camera frame. None as thresholds means the model's own."""

    job: int
    session: int
    picture: Picture
    thresholds: Thresholds | None
    reply: Span | None


ToHost = Open | Close | Infer | Detect

# -- from the host --------------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The host's first word: its backend is imported, and which version of the runtime that was."""

    pid: int
    version: str


class Unfit(msgspec.Struct, frozen=True, tag=True):
    """The host cannot import its backend; it ends."""

    message: str


class Opened(msgspec.Struct, frozen=True, tag=True):
    session: int


class Closed(msgspec.Struct, frozen=True, tag=True):
    session: int


class OpenFailed(msgspec.Struct, frozen=True, tag=True):
    session: int
    error: str
    message: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Outputs of a tensor request, or of a frame for a model of no family."""

    job: int
    outputs: tuple[TensorRef, ...]
    times: Times
    width: int = 0
    height: int = 0


class Detected(msgspec.Struct, frozen=True, tag=True):
    """Detections of a frame, packed as in `edged.vision.detections`; width and height of the picture in pixels."""

    job: int
    detections: bytes
    times: Times
    width: int
    height: int


class JobFailed(msgspec.Struct, frozen=True, tag=True):
    job: int
    error: str
    message: str


FromHost = Ready | Unfit | Opened | Closed | OpenFailed | Answer | Detected | JobFailed
