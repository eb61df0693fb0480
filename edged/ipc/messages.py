"""Messages between the daemon and an engine host: MessagePack in the frames of `frames`; bulk bytes are in the
arena."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edged.backends.contract import Order
from edged.ipc.arena import Span
from edged.models.limits import Bounds
from edged.vision.family import Recognition, Thresholds
from edged.vision.placement import Roi

_FEW, _MANY = msgspec.Meta(max_length=1024), msgspec.Meta(max_length=4096)

# -- frames and tensors ---------------------------------------------------------------------------------------------


class Picture(msgspec.Struct, frozen=True, array_like=True):
    """One picture: encoded if `pixel_format` is empty, else raw with its geometry in pixels and bytes.

    Without a roi the whole picture is used, without thresholds the model's.
    """

    span: Span
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    stride: int = 0
    roi: Roi | None = None
    thresholds: Thresholds | None = None


class TensorRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor: in the arena, or, if it did not fit there, in the message or in so many bytes that follow it. BYTES
    are length-prefixed elements."""

    name: str
    datatype: str
    shape: Annotated[tuple[int, ...], _FEW]
    span: Span | None = None
    data: bytes = b""
    following: int = 0


class Times(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Milliseconds spent in each step of the host; parts of a batch share `infer_ms`."""

    decode_ms: float = 0.0
    prepare_ms: float = 0.0
    infer_ms: float = 0.0
    postprocess_ms: float = 0.0


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of one picture of `width` x `height` pixels.

    Detections or classes, packed by `edged.vision.detections`; or the outputs of a model without a family; or the class
    and message of the error that is its answer. `not_finite` names outputs that held NaN or infinity. `following`: the
    number of bytes that follow the message, which are its detections.
    """

    width: int = 0
    height: int = 0
    times: Times = Times()
    detections: bytes | None = None
    classes: bytes | None = None
    outputs: Annotated[tuple[TensorRef, ...], _MANY] = ()
    error: str = ""
    message: str = ""
    not_finite: Annotated[tuple[str, ...], _MANY] = ()
    following: int = 0


# -- to the host ----------------------------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, tag=True):
    """`batch` is the largest number of pictures that will be sent together, `bounds` the limits of each request."""

    session: int
    order: Order
    recognition: Recognition
    batch: int = 1
    bounds: Bounds = Bounds()


class Close(msgspec.Struct, frozen=True, tag=True):
    session: int


class Infer(msgspec.Struct, frozen=True, tag=True):
    """A tensor request, or a batch of so many `parts`. `reply` is the span for outputs, as far as they fit."""

    job: int
    session: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[str, ...] | None
    reply: Span | None
    parts: int = 1


class Detect(msgspec.Struct, frozen=True, tag=True):
    """A batch of camera frames. `reply` is the span for raw outputs, as far as they fit."""

    job: int
    session: int
    pictures: tuple[Picture, ...]
    reply: Span | None


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Cancel a job, or stop it if its runtime can be stopped. It is answered in any case."""

    job: int
    session: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """The host's main loop answers with a Pong at once, whatever its sessions do."""


ToHost = Open | Close | Infer | Detect | Stop | Ping

# -- from the host --------------------------------------------------------------------------------------------------
#
# A hostile model may have taken the host over, so no message may take long to decode: it has no unknown fields, no
# field twice, and no list that is longer than a request can make it.


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The host's first message: it has imported its backend, with this version of the runtime."""

    pid: int
    version: str


class Unfit(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The host cannot import its backend; it ends."""

    message: str


class Opened(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """`nodes`: where the session's nodes run, as far as its runtime reports it."""

    session: int
    nodes: Annotated[dict[str, Annotated[dict[str, int], _FEW]], _FEW] = {}


class Closed(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    session: int


class OpenFailed(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    session: int
    error: str
    message: str


class Answer(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The outputs of a tensor request. `not_finite` names those that hold NaN or infinity."""

    job: int
    outputs: Annotated[tuple[TensorRef, ...], _MANY]
    times: Times
    not_finite: Annotated[tuple[str, ...], _MANY] = ()


class Detected(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The results of the frames of a job, in their order."""

    job: int
    seen: Annotated[tuple[Seen, ...], _FEW]


class JobFailed(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    job: int
    error: str
    message: str
    not_finite: Annotated[tuple[str, ...], _MANY] = ()


class Pong(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Answers a Ping."""


FromHost = Ready | Unfit | Opened | Closed | OpenFailed | Answer | Detected | JobFailed | Pong


def joined(message: Answer | Detected, bulk: memoryview) -> Answer | Detected:
    """A message with its bulk bytes in place, without a copy. ValueError if their number does not match."""
    at = 0

    def take(size: int) -> memoryview:
        nonlocal at
        if size < 0 or at + size > len(bulk):
            raise ValueError(f"{len(bulk)} bytes follow the message, fewer than it announces")
        at += size
        return bulk[at - size : at]

    def outputs(refs: tuple[TensorRef, ...]) -> tuple[TensorRef, ...]:
        return tuple(replace(ref, data=take(ref.following)) if ref.following else ref for ref in refs)

    replace = msgspec.structs.replace
    if isinstance(message, Answer):
        return replace(message, outputs=outputs(message.outputs))
    seen = (
        replace(
            each,
            detections=bytes(take(each.following)) if each.following else each.detections,
            outputs=outputs(each.outputs),
        )
        for each in message.seen
    )
    return replace(message, seen=tuple(seen))
