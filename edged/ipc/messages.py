"""Messages between the daemon and an engine host: MessagePack in the frames of `ipc.frames`. Pictures, tensors and
raw outputs are in the arena. Detections and contents, and raw outputs that do not fit, follow the host's message."""

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
    """One picture: encoded if `pixel_format` is empty, otherwise raw with `width` and `height` in pixels, `stride` in
    bytes.

    Without a roi the whole picture is used; without thresholds the model's are used. Consecutive pictures with the same
    span are regions of one picture, which is decoded once.
    """

    span: Span
    pixel_format: str = ""
    width: int = 0
    height: int = 0
    stride: int = 0
    roi: Roi | None = None
    thresholds: Thresholds | None = None


class TensorRef(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One tensor. Its bytes are in the arena at `span`. If `span` is None, they are in `data`, or are the next
    `following` bytes after the message. Elements of BYTES have a length prefix."""

    name: str
    datatype: str
    shape: Annotated[tuple[int, ...], _FEW]
    span: Span | None = None
    data: bytes = b""
    following: int = 0


class Times(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Milliseconds that each step took in the host. `infer_ms` is the time of the whole batch, for each of its requests
    or pictures."""

    decode_ms: float = 0.0
    prepare_ms: float = 0.0
    infer_ms: float = 0.0
    postprocess_ms: float = 0.0


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The result of one picture of `width` x `height` pixels.

    A decoded result is `detections`, packed by `edged.vision.detections`, or `content`, such as a class map or a text,
    packed by `edged.vision.content`. A model without a family has `outputs` instead. `error` and `message` are the
    class and message of an error. `not_finite` names outputs that contain NaN or infinity. If the detections or the
    content follow the message, `following` is their size in bytes, and the field `detections` or `content` is empty,
    not None.
    """

    width: int = 0
    height: int = 0
    times: Times = Times()
    detections: bytes | None = None
    content: bytes | None = None
    outputs: Annotated[tuple[TensorRef, ...], _MANY] = ()
    error: str = ""
    message: str = ""
    not_finite: Annotated[tuple[str, ...], _MANY] = ()
    following: int = 0


# -- to the host ----------------------------------------------------------------------------------------------------


class Open(msgspec.Struct, frozen=True, tag=True):
    """Open an engine. At most `batch` pictures will be sent together. `bounds` has the limits of a request."""

    session: int
    order: Order
    recognition: Recognition
    batch: int = 1
    bounds: Bounds = Bounds()


class Close(msgspec.Struct, frozen=True, tag=True):
    session: int


class Infer(msgspec.Struct, frozen=True, tag=True):
    """A tensor request, or a batch of `parts` requests. `outputs` is None for all outputs. The host writes outputs into
    the span `reply` as far as they fit."""

    job: int
    session: int
    inputs: tuple[TensorRef, ...]
    outputs: tuple[str, ...] | None
    reply: Span | None
    parts: int = 1


class Detect(msgspec.Struct, frozen=True, tag=True):
    """A batch of camera frames. The host writes raw outputs into the span `reply` as far as they fit. `most` is the
    largest number of pictures in one run of the engine, 0 for as many as the engine accepts. The engine runs again for
    the rest."""

    job: int
    session: int
    pictures: tuple[Picture, ...]
    reply: Span | None
    most: int = 0


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Cancel a waiting job, or stop a running one if its runtime can stop. The host answers the job in any case."""

    job: int
    session: int


class Ping(msgspec.Struct, frozen=True, tag=True):
    """A liveness check: the host's main loop answers with a Pong at once, even while its sessions are busy."""


ToHost = Open | Close | Infer | Detect | Stop | Ping

# -- from the host --------------------------------------------------------------------------------------------------
#
# A hostile model may control the host, so no message may take long to decode. The daemon does not accept unknown
# fields, repeated fields, and lists that are longer than a request can cause.


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The host's first message: its backend is imported. `version` is the version of the backend's runtime."""

    version: str


class Unfit(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The host cannot import its backend, and ends."""

    message: str


class Opened(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The session is open. `nodes` is the placement of its nodes, as far as the runtime reports it."""

    session: int
    nodes: Annotated[dict[str, Annotated[dict[str, int], _FEW]], _FEW] = {}


class Closed(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    session: int


class OpenFailed(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    session: int
    error: str
    message: str


class Answer(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The outputs of a tensor request. `not_finite` names the outputs that contain NaN or infinity."""

    job: int
    outputs: Annotated[tuple[TensorRef, ...], _MANY]
    times: Times
    not_finite: Annotated[tuple[str, ...], _MANY] = ()


class Detected(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """The results of the frames of a job, in order."""

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
    """Return a message with the bulk bytes in its fields; outputs are views of `bulk`, not copies. Raises ValueError if
    there are fewer bytes than the message announces."""
    at = 0

    def take(size: int) -> memoryview:
        nonlocal at
        if size < 0 or at + size > len(bulk):
            raise ValueError(f"{len(bulk)} bytes follow the message, fewer than the message announces")
        at += size
        return bulk[at - size : at]

    def outputs(refs: tuple[TensorRef, ...]) -> tuple[TensorRef, ...]:
        return tuple(replace(ref, data=take(ref.following)) if ref.following else ref for ref in refs)

    replace = msgspec.structs.replace
    if isinstance(message, Answer):
        return replace(message, outputs=outputs(message.outputs))

    def completed(seen: Seen) -> Seen:
        if not seen.following:
            return replace(seen, outputs=outputs(seen.outputs))
        data = bytes(take(seen.following))
        if seen.detections is None:
            return replace(seen, content=data, outputs=outputs(seen.outputs))
        return replace(seen, detections=data, outputs=outputs(seen.outputs))

    return replace(message, seen=tuple(map(completed, message.seen)))
