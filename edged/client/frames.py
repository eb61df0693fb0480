"""A picture in any form a program holds it, on its way to the daemon."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from edged.client.options import Asked
from edged.client.result import Result
from edged.client.sharing import Sharing
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


class FrameMaker:
    """Numbers the frames of one camera from 1, and puts them in the form of the protocol."""

    def __init__(self, model: str, camera: str, wanted: Asked, sharing: Sharing | None = None) -> None:
        """With `sharing`, pixels go through shared memory where that works."""
        self._model, self._camera, self._asked, self._sharing = model, camera, wanted, sharing
        self._sequence = 0

    def make(self, item: Picture | Captured) -> pb.Frame:
        """A picture without a capture time gets the present one. InvalidInput or NotFound for an unusable picture."""
        taken = item if isinstance(item, Captured) else Captured.now(item)
        frame = single(self._model, taken.image, self._camera, self._asked, self._sharing)
        self._sequence += 1
        frame.sequence = self._sequence
        frame.captured_unix_ns, frame.captured_mono_ns = taken.captured_unix_ns, taken.captured_mono_ns
        return frame

    def on_result(self, result: Result) -> None:
        """An error may mean that the daemon cannot read what is shared."""
        if self._sharing is not None and result.error is not None:
            self._sharing.on_error(result.error[0])

    def close(self) -> None:
        """No more frames will be made."""
        if self._sharing is not None:
            self._sharing.close()

    @property
    def every_frame(self) -> bool:
        options = self._asked.options
        return options is not None and options.mode == pb.StreamOptions.EVERY_FRAME

    def introduce(self, frame: pb.Frame) -> None:
        """To be done with the first frame of each call, since the daemon forgets a camera when its call is over."""
        if self._asked.options is not None:
            frame.options.CopyFrom(self._asked.options)


def single(model: str, image: Picture, camera: str, wanted: Asked, sharing: Sharing | None = None) -> pb.Frame:
    """A frame for `DetectOne`, or the base of one in a stream."""
    frame = pb.Frame(
        camera=camera, model=model, thresholds=wanted.thresholds, region=wanted.region, rotation=wanted.rotation
    )
    if isinstance(image, np.ndarray):
        _fill(frame, image, sharing)
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
        raise InvalidInput(f"a {type(image).__name__} is not a picture; give a path, JPEG bytes or a uint8 array")
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


def _fill(frame: pb.Frame, image: npt.NDArray[np.uint8], sharing: Sharing | None) -> None:
    """Pixels as they are, rows packed."""
    if image.dtype != np.uint8:
        raise InvalidInput(f"an array of {image.dtype} is not a picture; convert it to uint8, 0..255")
    if image.ndim == 3 and image.shape[2] == 1:
        image = image[:, :, 0]
    if 0 in image.shape or not (image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 3)):
        raise InvalidInput(
            f"an array of shape {image.shape} is not a picture; give [height, width, 3] or [height, width]"
        )
    shared = sharing.put(image) if sharing is not None else None
    if shared is not None:
        frame.shared.CopyFrom(shared)
    else:
        frame.raw.data = image.tobytes()
    geometry = frame.raw if shared is None else frame.shared
    geometry.format = pb.BGR if image.ndim == 3 else pb.GRAY
    geometry.height, geometry.width = image.shape[:2]
