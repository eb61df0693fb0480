"""What a client of the ZeroMQ lane says about a frame: one JSON header, and the picture's bytes behind it or in shared
memory. Pure; unknown names are refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from edged.decoding import explain
from edged.errors import InvalidInput
from edged.serving.camera import Mode, StreamOptions
from edged.serving.work import Blob, FrameWork
from edged.vision.family import Thresholds
from edged.vision.placement import Region, Roi

_LONGEST_HEADER = 1 << 16
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Limits(_Strict, frozen=True):
    """Override the model's; None leaves them."""

    score: _Share | None = None
    iou: _Share | None = None
    max_detections: Annotated[int, msgspec.Meta(ge=1, lt=1 << 32)] | None = None
    class_agnostic: bool | None = None

    def over(self, base: Thresholds) -> Thresholds:
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        chosen: Thresholds = msgspec.structs.replace(base, **given)
        return msgspec.structs.replace(chosen, max_detections=min(chosen.max_detections, 4096))


class Area(_Strict, frozen=True):
    """Part of the picture, in its pixels; a size of 0 reaches to the edge."""

    x: _Size = 0
    y: _Size = 0
    width: _Size = 0
    height: _Size = 0


class Options(_Strict, frozen=True):
    """As `edged.v1.StreamOptions`."""

    mode: Mode = "freshest"
    max_fps: float = 0.0
    max_staleness_ms: float = 0.0
    weight: float = 0.0
    priority: int = 0
    track: bool = False

    def checked(self) -> StreamOptions:
        staleness = self.max_staleness_ms / 1e3
        return StreamOptions.checked(self.mode, self.max_fps, staleness, self.weight, self.priority, self.track)


class Shared(_Strict, frozen=True):
    """As `edged.v1.SharedImage`; the format and sizes are the header's."""

    segment: str
    offset: _Count
    stamp: Annotated[int, msgspec.Meta(ge=0)]
    size: _Count


class Header(_Strict, frozen=True):
    """As `edged.v1.Frame`; `format` is empty for JPEG and PNG, else width, height and stride are as in RawImage."""

    camera: str = ""
    sequence: _Count = 0
    model: str = ""
    captured_unix_ns: _Count = 0
    format: Literal["", "bgr", "rgb", "gray", "nv12", "i420"] = ""
    width: _Size = 0
    height: _Size = 0
    stride: _Size = 0
    thresholds: Limits | None = None
    region: Area | None = None
    rotation: Literal[0, 90, 180, 270] = 0
    options: Options | None = None
    shared: Shared | None = None

    def work(self, picture: Blob, base: Thresholds) -> FrameWork:
        """The work that the frame asks for; `base` are the model's thresholds."""
        area = self.region
        region = None if area is None else Region(area.x, area.y, area.width, area.height)
        return FrameWork(
            picture,
            self.format,
            self.width,
            self.height,
            self.stride,
            thresholds=self.thresholds.over(base) if self.thresholds is not None else None,
            roi=Roi(region, self.rotation) if region is not None or self.rotation else None,
        )


class Message(msgspec.Struct, frozen=True):
    """One message: the header, and the bytes behind it, if there are any."""

    header: Header
    data: memoryview | None


_decoder = msgspec.json.Decoder(Header)


def parse(frames: Sequence[memoryview]) -> Message:
    """InvalidInput, in one line, for what is no frame."""
    if not frames or len(frames) > 2 or len(frames[0]) > _LONGEST_HEADER:
        raise InvalidInput(
            f"the message has {len(frames)} parts; send a JSON header, and the picture's bytes behind it"
        )
    try:
        header = _decoder.decode(frames[0])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"the frame's header cannot be used: {explain(error)}") from None
    data = frames[1] if len(frames) == 2 else None
    if (data is None) == (header.shared is None):
        raise InvalidInput("the frame holds no picture, or two; send its bytes behind the header, or set `shared`")
    return Message(header, data)
