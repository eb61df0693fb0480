"""Makes frame messages from pictures (paths, encoded bytes or arrays) and the options of their stream."""

from __future__ import annotations

import itertools
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.client.result import Result
from edged.client.shared import Sharing
from edged.decoding import varint
from edged.errors import InvalidInput, NotFound
from edged.proto import cameras_pb2 as pb

_TURNS = (0, 90, 180, 270)
_PRIORITY = 100
_LARGEST = (1 << 31) - 1  # most bytes of a protobuf message

Region = tuple[int, int, int, int]
"""x, y, width and height in pixels of the picture as sent; a width or height of 0 reaches to the edge."""


@dataclass(frozen=True)
class FrameOptions:
    """The options of a camera's frames. `options` is sent only with the first frame of each call. None means the
    default of the model or daemon."""

    thresholds: pb.Thresholds | None = None
    region: pb.Region | None = None
    rotation: int = 0
    options: pb.StreamOptions | None = None

    @property
    def every_frame(self) -> bool:
        return self.options is not None and self.options.mode == pb.StreamOptions.EVERY_FRAME


def frame_options(
    score: float | None = None,
    iou: float | None = None,
    max_detections: int | None = None,
    class_agnostic: bool | None = None,
    region: Region | None = None,
    rotation: int = 0,
    options: pb.StreamOptions | None = None,
) -> FrameOptions:
    """Check and pack the options of frames. Raises InvalidInput if a value is out of range."""
    if rotation not in _TURNS:
        raise InvalidInput(f"rotation={rotation} is invalid; give 0, 90, 180 or 270 degrees clockwise")
    limits = _thresholds(score, iou, max_detections, class_agnostic)
    return FrameOptions(limits, None if region is None else to_region(region), rotation, options)


def stream_options(
    every_frame: bool = False,
    max_fps: float = 0.0,
    max_staleness: float = 0.0,
    weight: float = 1.0,
    priority: int = 0,
    track: bool = False,
) -> pb.StreamOptions | None:
    """Check and pack the options of a stream; return None if all are defaults. Raises InvalidInput if a value is out of
    range."""
    for name, value in (("max_fps", max_fps), ("max_staleness", max_staleness)):
        if not 0 <= value < 2**31 / 1000:
            raise InvalidInput(f"{name}={value:g} is out of range; give a number from 0 (no limit) to {2**31 // 1000}")
    if not 0 < weight < math.inf:
        raise InvalidInput(f"weight={weight:g} is out of range; give a positive number; the default is 1")
    if not -_PRIORITY <= priority <= _PRIORITY:
        raise InvalidInput(f"priority={priority} is out of range; give a whole number from -100 to 100")
    options = pb.StreamOptions(
        mode=pb.StreamOptions.EVERY_FRAME if every_frame else pb.StreamOptions.FRESHEST,
        max_fps=max_fps,
        # Rounding must not turn a limit into 0, which means no limit.
        max_staleness_ms=max(1, round(max_staleness * 1000)) if max_staleness else 0,
        weight=0.0 if weight == 1 else weight,
        priority=priority,
        track=track,
    )
    return options if options.ByteSize() else None


def _thresholds(
    score: float | None, iou: float | None, max_detections: int | None, class_agnostic: bool | None
) -> pb.Thresholds | None:
    for name, value in (("score", score), ("iou", iou)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name}={value} is out of range; give a number from 0 to 1")
    if max_detections is not None and not 0 < max_detections < 2**32:
        raise InvalidInput(f"max_detections={max_detections} is out of range; give a whole number from 1")
    if score is None and iou is None and max_detections is None and class_agnostic is None:
        return None
    limits = pb.Thresholds(score=score, iou=iou, max_detections=max_detections)
    if class_agnostic is not None:
        limits.class_agnostic = class_agnostic
    return limits


def to_region(region: Region) -> pb.Region:
    if len(region) != 4 or not all(0 <= value < 2**32 for value in region):
        raise InvalidInput(f"region={region} is invalid; give x, y, width and height in pixels")
    x, y, width, height = region
    return pb.Region(x=x, y=y, width=width, height=height)


class Samples(msgspec.Struct, frozen=True, eq=False):
    """Consecutive samples of one channel, for a model that takes sound. `data` is int16 [n], or floats [n] in -1..1.
    `rate` is the number of samples a second."""

    data: npt.NDArray[np.int16] | npt.NDArray[np.floating]
    rate: int


Picture: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | npt.NDArray[np.uint8] | Samples
"""A path, the bytes of a JPEG or PNG file, uint8 pixels (BGR [height, width, 3] or gray [height, width]), or
`Samples` for a model that takes sound."""


class Captured(msgspec.Struct, frozen=True, eq=False):
    """A picture and its capture time in nanoseconds: `captured_unix_ns` on the wall clock since 1970, and
    `captured_mono_ns` on the monotonic clock. 0 means unknown, as for recordings; the age then counts from the
    picture's arrival at the daemon. `position_s` is the picture's position in a recording, in seconds from the start;
    None without a recording."""

    image: Picture
    captured_unix_ns: int = 0
    captured_mono_ns: int = 0
    position_s: float | None = None

    @classmethod
    def now(cls, image: Picture) -> Captured:
        return cls(image, time.time_ns(), time.monotonic_ns())


class OutgoingFrame(msgspec.Struct, frozen=True):
    """A frame ready to be sent: `data` is a serialized `edged.v1.Frame`."""

    data: bytes
    captured_mono_ns: int = 0


class FrameMaker:
    """Makes one camera's frames, numbered from 1; `sharing` puts pixels into shared memory."""

    def __init__(self, model: str, camera: str, wanted: FrameOptions, sharing: Sharing | None = None) -> None:
        self._model, self._camera, self._options, self._sharing = model, camera, wanted, sharing
        self._sequence = 0
        self._positions: dict[int, float] = {}  # of unanswered frames in a recording, in seconds, by frame number

    def make(self, item: Picture | Captured) -> OutgoingFrame:
        """Make the frame of a picture. A picture that is not a `Captured` gets the current time as capture time. Raises
        InvalidInput, NotFound or SegmentUnusable."""
        taken = item if isinstance(item, Captured) else Captured.now(item)
        frame = _frame(self._model, self._camera, self._options)
        frame.sequence = self._sequence + 1
        frame.captured_unix_ns, frame.captured_mono_ns = taken.captured_unix_ns, taken.captured_mono_ns
        data = _with_picture(frame, taken.image, self._sharing)
        self._sequence += 1
        if taken.position_s is not None:
            self._positions[self._sequence] = taken.position_s
        return OutgoingFrame(data, taken.captured_mono_ns)

    def on_result(self, result: Result) -> Result:
        """Return the result with its position in the recording. Stop sharing memory if the result's error says that the
        daemon cannot read the memory."""
        if self._sharing is not None and result.error is not None:
            self._sharing.on_error(result.error[0])
        if not self._positions:
            return result
        position = self._positions.get(result.sequence)
        for number in list(itertools.takewhile(lambda number: number <= result.sequence, self._positions)):
            del self._positions[number]  # answers arrive in order: frames before this one were skipped
        return result if position is None else msgspec.structs.replace(result, position_s=position)

    def close(self) -> None:
        """Release the shared memory; no frame may be made afterwards."""
        if self._sharing is not None:
            self._sharing.close()

    def introduce(self, frame: OutgoingFrame) -> OutgoingFrame:
        """Return the frame with the stream's options. The first frame of each call needs these options, since the
        daemon forgets them when the call ends."""
        if self._options.options is None:
            return frame
        options = pb.Frame(options=self._options.options).SerializeToString()
        return OutgoingFrame(frame.data + options, frame.captured_mono_ns)


def single(model: str, image: Picture, camera: str, wanted: FrameOptions) -> bytes:
    """Make the message of one picture, without number and capture time. Raises InvalidInput or NotFound."""
    return _with_picture(_frame(model, camera, wanted), image)


def _frame(model: str, camera: str, wanted: FrameOptions) -> pb.Frame:
    return pb.Frame(
        camera=camera, model=model, thresholds=wanted.thresholds, region=wanted.region, rotation=wanted.rotation
    )


def read_picture(image: str | os.PathLike[str] | bytes | bytearray | memoryview | Samples) -> bytes:
    """Return the bytes of an encoded picture. Raises NotFound if its file does not exist, InvalidInput if it cannot be
    read or is empty."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        encoded, what = bytes(image), "the picture"
    elif isinstance(image, (str, os.PathLike)):
        encoded, what = _read(Path(image)), str(image)
    else:
        raise InvalidInput(f"a {type(image).__name__} is not a picture; give a path, JPEG bytes or a uint8 array")
    if not encoded:
        raise InvalidInput(f"{what} is empty; give a JPEG or PNG")
    return encoded


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"the picture {str(path)!r} does not exist") from None
    except OSError as error:
        raise InvalidInput(f"the picture {str(path)!r} cannot be read: {error.strerror}") from None


def _with_picture(frame: pb.Frame, image: Picture, sharing: Sharing | None = None) -> bytes:
    """Return a serialized frame with a picture, or with the picture's place if `sharing` puts it into shared memory.
    The parts of the message are joined here, so that protobuf does not copy the picture again."""
    if isinstance(image, Samples):
        return _joined(frame.SerializeToString(), pb.Frame(samples=_samples(image)).SerializeToString())
    if not isinstance(image, np.ndarray):
        encoded = read_picture(image)
        return _joined(frame.SerializeToString(), _length(pb.Frame.ENCODED_FIELD_NUMBER, len(encoded)), encoded)
    pixels = _pixels(image)
    kind, height, width = pb.BGR if pixels.ndim == 3 else pb.GRAY, pixels.shape[0], pixels.shape[1]
    if sharing is not None and (place := sharing.put(pixels)) is not None:
        frame.shared.CopyFrom(place)
        frame.shared.format, frame.shared.height, frame.shared.width = kind, height, width
        return frame.SerializeToString()
    about = pb.RawImage(format=kind, height=height, width=width).SerializeToString()
    about += _length(pb.RawImage.DATA_FIELD_NUMBER, pixels.nbytes)
    start = frame.SerializeToString() + _length(pb.Frame.RAW_FIELD_NUMBER, len(about) + pixels.nbytes)
    return _joined(start, about, np.ascontiguousarray(pixels).data)


def _samples(sound: Samples) -> pb.Samples:
    """Convert samples to a message. Raises InvalidInput for another shape or dtype, or an invalid rate."""
    data = np.asarray(sound.data)
    if data.ndim != 1:
        raise InvalidInput(f"samples of shape {data.shape} are not one channel; give an array [n]")
    if not 0 < sound.rate < 2**32:
        raise InvalidInput(f"rate={sound.rate} is invalid; give the number of samples a second, such as 16000")
    if data.dtype == np.int16:
        return pb.Samples(format=pb.Samples.S16, rate=sound.rate, data=data.astype("<i2").tobytes())
    if data.dtype.kind == "f":
        return pb.Samples(format=pb.Samples.F32, rate=sound.rate, data=data.astype("<f4").tobytes())
    raise InvalidInput(f"samples of {data.dtype} are not supported; give int16, or floats in -1..1")


def _pixels(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the pixels as [height, width, 3] or [height, width]. Raises InvalidInput for another shape or dtype."""
    if image.dtype != np.uint8:
        raise InvalidInput(f"an array of {image.dtype} is not a picture; convert it to uint8, 0..255")
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if 0 in image.shape or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
        raise InvalidInput(
            f"an array of shape {image.shape} is not a picture; give [height, width, 3] or [height, width]"
        )
    return image


def _joined(*parts: bytes | memoryview) -> bytes:
    data = b"".join(parts)
    if len(data) > _LARGEST:
        raise InvalidInput(
            f"the frame's message of {len(data)} bytes is larger than protobuf allows; send a smaller picture"
        )
    return data


def _length(number: int, size: int) -> bytes:
    """Return the tag and length of a field with `size` bytes."""
    return bytes([number << 3 | 2]) + varint(size)
