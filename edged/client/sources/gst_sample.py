"""The pixels of a GStreamer sample.

Raw video lies in rows of a multiple of 4 bytes, planes one after the other, as `gst_video_info_set_format` lays it out
for whoever does not ask for another layout.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from edged.client.frames import Picture
from edged.client.sources import jpeg

FORMATS = ("BGR", "BGRx", "NV12", "GRAY8")
Pixels: TypeAlias = npt.NDArray[np.uint8]
_CHANNELS = {"BGR": 3, "BGRx": 4, "GRAY8": 1}


def develop(gst: Any, sample: Any) -> Picture:
    """JPEG bytes, BGR uint8 [height, width, 3], or gray uint8 [height, width]. ValueError for a torn buffer."""
    shape = sample.get_caps().get_structure(0)
    buffer = sample.get_buffer()
    mapped, view = buffer.map(gst.MapFlags.READ)
    if not mapped:
        raise ValueError("a buffer that cannot be read")
    try:
        if shape.get_name() == "image/jpeg":
            return _picture(bytes(view.data))
        data = np.frombuffer(view.data, np.uint8)
        return pixels(data, shape.get_value("format"), shape.get_value("width"), shape.get_value("height"))
    finally:
        buffer.unmap(view)


def pixels(data: Pixels, layout: str, width: int, height: int) -> Pixels:
    """A copy, since the buffer goes back to its pool."""
    if layout == "NV12":
        return _from_nv12(data, width, height)
    channels = _CHANNELS[layout]
    rows = _rows(data, height, width * channels)
    if channels == 1:
        return np.array(rows, np.uint8)
    image = rows.reshape(height, width, channels)
    if channels == 3:
        return np.array(image, np.uint8)
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_BGRA2BGR), np.uint8)


def _from_nv12(data: Pixels, width: int, height: int) -> Pixels:
    """OpenCV wants even sizes, which the planes have; the picture is cut to its own at the end."""
    across, down = width + width % 2, height + height % 2
    luma_end = _round4(width) * down
    luma = _rows(data[:luma_end], down, across)
    chroma = _rows(data[luma_end:], down // 2, across).reshape(down // 2, across // 2, 2)
    image = cv2.cvtColorTwoPlane(luma, chroma, cv2.COLOR_YUV2BGR_NV12)
    return np.asarray(image[:height, :width], np.uint8)


def _rows(data: Pixels, height: int, used: int) -> Pixels:
    """[height, used] of rows that are padded to a multiple of 4 bytes."""
    stride = _round4(used)
    if data.size < stride * height:
        raise ValueError(f"{data.size} bytes are no {height} rows of {stride}")
    return data[: stride * height].reshape(height, stride)[:, :used]


def _round4(value: int) -> int:
    return (value + 3) // 4 * 4


def _picture(data: bytes) -> bytes:
    whole = jpeg.complete(data)
    if whole is None:
        raise ValueError("a JPEG that is cut off")
    return whole
