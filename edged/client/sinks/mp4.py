"""A sink that writes annotated pictures as a video."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import Any, BinaryIO

import cv2
import numpy as np

from edged import packages
from edged.client.result import Result
from edged.client.sinks.sink import Answered, Background, Sink
from edged.client.sources.pyav import reason, require_av
from edged.errors import EdgedError, InvalidInput, Unsupported
from edged.vision.image import Image

_TICKS = 1000  # ticks of the video's clock per second
_USUAL_TICKS = _TICKS // 25  # ticks between pictures without capture times
_ENCODERS = ("libx264", "libopenh264", "h264_v4l2m2m", "mpeg4")
_HYBRID_SINCE = (61, 7)  # the version of libavformat in FFmpeg 7.1
# A fragment begins with a key frame and is written when it is complete. B-frames would shift the start of the video.
_ENCODING = {"g": "50", "bf": "0"}


class Mp4(Sink):
    """Writes the annotated pictures as a video, which a thread encodes. Each picture is shown until the capture time of
    the next one. The video has the size of the first picture; later pictures are fitted into it. Pictures that cannot
    be decoded are left out. If the program is killed, only the last few seconds of the video are lost.

    A picture is left out and counts in `dropped` if its encoding would delay the stream; with `lossless` the stream
    waits. Raises Unsupported if PyAV is not installed or cannot encode, InvalidInput if the file cannot be written.
    """

    wants_pictures = True

    def __init__(self, path: str | os.PathLike[str], *, lossless: bool = False) -> None:
        self.name = os.fspath(path)
        av = require_av()
        self._encoder = next((name for name in _ENCODERS if name in av.codecs_available), None)
        if self._encoder is None:
            raise Unsupported(
                f"this PyAV cannot encode video; install another PyAV: {packages.install('av', option='-U')}"
            )
        try:
            self._file = _File(self.name)
        except OSError as error:
            raise InvalidInput(f"the video {self.name!r} cannot be written: {reason(error)}") from None
        options = {"movflags": _flags(av), "flush_packets": "1"}
        self._container: Any = av.open(self._file, "w", format="mp4", options=options)
        self._stream: Any = None
        self._clock = Timeline()
        self._background = Background("edged-video", self._write, self._finish, lossless=lossless)

    @property
    def dropped(self) -> int:
        return self._background.dropped

    def on_answer(self, answered: Answered) -> None:
        if answered.image is not None:
            self._background.put(answered)

    def close(self) -> None:
        """Encode the waiting pictures and finish the file. Raises InvalidInput if it could not be written."""
        self._background.close()

    def _write(self, answered: Answered) -> None:
        av = require_av()
        try:
            image = answered.painted
        except EdgedError:  # a picture that cannot be decoded
            return
        if image is None:
            return
        try:
            if self._stream is None:
                self._begin(image)
            frame = av.VideoFrame.from_ndarray(_fitted(image, self._stream.width, self._stream.height), format="bgr24")
            frame.pts, frame.time_base = self._clock.at(answered.result), Fraction(1, _TICKS)
            self._container.mux(self._stream.encode(frame))
        except av.FFmpegError as error:
            raise InvalidInput(f"the video {self.name!r} cannot be written: {reason(error)}") from None
        self._require_written()

    def _begin(self, image: Image) -> None:
        options = _ENCODING | ({"preset": "veryfast"} if self._encoder == "libx264" else {})
        self._stream = self._container.add_stream(self._encoder, rate=25, options=options)
        self._stream.pix_fmt = "yuv420p"
        self._stream.height, self._stream.width = (max(2, size // 2 * 2) for size in image.shape[:2])
        self._stream.codec_context.time_base = Fraction(1, _TICKS)

    def _finish(self) -> None:
        av = require_av()
        try:
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))
                self._container.close()
        except av.FFmpegError as error:
            raise InvalidInput(f"the video {self.name!r} cannot be finished: {reason(error)}") from None
        finally:
            self._file.close()
        self._require_written()

    def _require_written(self) -> None:
        if self._file.failure is not None:
            raise InvalidInput(f"the video {self.name!r} cannot be written: {reason(self._file.failure)}")


class _File:
    """The file that PyAV writes. Write errors are kept in `failure` and hidden from PyAV, because FFmpeg's MP4 writer
    crashed in tests when it finished a file that it could not write. After an error nothing more is written. Otherwise
    FFmpeg, when it finishes the file, would make the start of the file refer to an index that is missing at its end,
    and the whole video would be lost."""

    def __init__(self, path: str) -> None:
        self.name = path
        self.failure: OSError | None = None
        self._file: BinaryIO = open(path, "wb", buffering=0)  # noqa: SIM115 - closed by `close`

    def write(self, data: bytes) -> int:
        if self.failure is not None:
            return len(data)
        view = memoryview(data)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.failure = self.failure or error
        return len(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


class Timeline:
    """Computes presentation times, in ticks since the first picture. Each time is greater than the previous one."""

    def __init__(self) -> None:
        self._first_ns: int | None = None
        self._last = -1

    def at(self, result: Result) -> int:
        """Return the presentation time of a result, from its capture time. A result without capture time follows the
        previous one after 1/25 s."""
        taken = result.captured_mono_ns
        if not taken:
            at = self._last + _USUAL_TICKS if self._last >= 0 else 0
        else:
            self._first_ns = taken if self._first_ns is None else self._first_ns
            at = (taken - self._first_ns) * _TICKS // 1_000_000_000
        self._last = max(at, self._last + 1)
        return self._last


def _fitted(image: Image, width: int, height: int) -> Image:
    """Return the picture scaled to fit into width x height on a black background; the aspect ratio is kept. If the
    picture is larger by only one row or column, that row or column is cut off."""
    if image.shape[1] - image.shape[1] % 2 == width and image.shape[0] - image.shape[0] % 2 == height:
        return np.ascontiguousarray(image[:height, :width])
    scale = min(width / image.shape[1], height / image.shape[0])
    size = max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale))
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    canvas = np.zeros((height, width, 3), np.uint8)
    top, left = (height - size[1]) // 2, (width - size[0]) // 2
    canvas[top : top + size[1], left : left + size[0]] = small
    return canvas


def _flags(av: Any) -> str:
    """Return flags for a fragmented file, which can be played even if its end is missing. Newer versions of FFmpeg turn
    the finished file into an ordinary one."""
    whole_at_end = av.library_versions["libavformat"][:2] >= _HYBRID_SINCE
    return "+hybrid_fragmented" if whole_at_end else "+frag_keyframe+empty_moov+default_base_moof"
