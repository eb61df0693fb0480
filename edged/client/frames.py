"""A picture in any form a program holds it, on its way to the daemon."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.errors import InvalidInput, NotFound
from edged.proto import cameras_pb2 as pb

Picture: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview | npt.NDArray[np.uint8]
"""A path; the bytes of a JPEG or PNG file; or uint8 pixels, BGR [height, width, 3] or gray [height, width]."""


class Captured(msgspec.Struct, frozen=True, eq=False):
    """A picture and when it was taken: nanoseconds of the wall clock since 1970 and of the monotonic clock, 0 where
    that is not known (a recording): ages are then counted from its arrival at the daemon."""

    image: Picture
    captured_unix_ns: int = 0
    captured_mono_ns: int = 0

    @classmethod
    def now(cls, image: Picture) -> Captured:
        return cls(image, time.time_ns(), time.monotonic_ns())


def thresholds(score: float | None, iou: float | None, max_detections: int | None) -> pb.Thresholds | None:
    """The overrides for a frame, None where there are none. InvalidInput for a value out of range."""
    for name, value in (("score", score), ("iou", iou)):
        if value is not None and not 0 <= value <= 1:
            raise InvalidInput(f"{name}={value} is out of range; give a number from 0 to 1")
    if max_detections is not None and not 0 < max_detections < 2**32:
        raise InvalidInput(f"max_detections={max_detections} is out of range; give a whole number from 1")
    if score is None and iou is None and max_detections is None:
        return None
    return pb.Thresholds(score=score, iou=iou, max_detections=max_detections)


class FrameMaker:
    """Numbers the frames of one camera from 1, and puts them in the form of the protocol."""

    def __init__(self, model: str, camera: str, limits: pb.Thresholds | None) -> None:
        self._model, self._camera, self._limits = model, camera, limits
        self._sequence = 0

    def make(self, item: Picture | Captured) -> pb.Frame:
        """A picture without a capture time gets the present one. InvalidInput or NotFound for an unusable picture."""
        taken = item if isinstance(item, Captured) else Captured.now(item)
        frame = single(self._model, taken.image, self._camera, self._limits)
        self._sequence += 1
        frame.sequence = self._sequence
        frame.captured_unix_ns, frame.captured_mono_ns = taken.captured_unix_ns, taken.captured_mono_ns
        return frame


def single(model: str, image: Picture, camera: str, limits: pb.Thresholds | None) -> pb.Frame:
    """A frame for `DetectOne`, or the base of one in a stream."""
    frame = pb.Frame(camera=camera, model=model, thresholds=limits)
    if isinstance(image, np.ndarray):
        _fill(frame.raw, image)
    else:
        frame.encoded = read_picture(image)
    return frame


def read_picture(image: str | os.PathLike[str] | bytes | bytearray | memoryview) -> bytes:
    """The bytes of an encoded picture, unread; NotFound or InvalidInput where there are none."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        encoded, what = bytes(image), "the picture"
    elif isinstance(image, (str, os.PathLike)):
        encoded, what = _read(Path(image)), str(image)
    else:
        raise InvalidInput(f"a {type(image).__name__} is no picture; give a path, JPEG bytes or a uint8 array")
    if not encoded:
        raise InvalidInput(f"{what} is empty; give a JPEG or PNG")
    return encoded


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no picture {str(path)!r}") from None
    except OSError as error:
        raise InvalidInput(f"the picture {str(path)!r} cannot be read: {error.strerror}") from None


def _fill(raw: pb.RawImage, image: npt.NDArray[np.uint8]) -> None:
    """Pixels as they are, rows packed."""
    if image.dtype != np.uint8:
        raise InvalidInput(f"an array of {image.dtype} is no picture; convert it to uint8, 0..255")
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if 0 in image.shape or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
        raise InvalidInput(f"an array of shape {image.shape} is no picture; give [height, width, 3] or [height, width]")
    raw.format = pb.BGR if image.ndim == 3 else pb.GRAY
    raw.height, raw.width = image.shape[:2]
    raw.data = image.tobytes()
