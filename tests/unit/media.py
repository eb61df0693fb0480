"""Pictures and videos for the tests of cameras, sinks and commands."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np


def shade(value: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    return np.full((size[1], size[0], 3), value, np.uint8)


def jpeg(value: int, size: tuple[int, int] = (64, 48)) -> bytes:
    return cv2.imencode(".jpg", shade(value, size))[1].tobytes()


def video(path: Path, values: Iterable[int], fps: float = 20) -> Path:
    """Write a Motion JPEG file with one gray picture for each value."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), fps, (64, 48))
    assert writer.isOpened()
    for value in values:
        writer.write(shade(value))
    writer.release()
    return path


def h264(frames: int, size: tuple[int, int] = (256, 192), *, container: str = "mpegts", keyframes: int = 10) -> bytes:
    """Return an H.264 stream of pictures that get brighter, with noise so that a picture needs several packets."""
    width, height = size
    noise = np.random.default_rng(0).integers(0, 20, (height, width, 3), np.uint8)
    import av  # an optional dependency

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as made:
        stream = made.add_stream("libx264", rate=25, options={"g": str(keyframes), "tune": "zerolatency"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            image = noise + np.uint8(20 + 200 * number // frames)
            made.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="bgr24")))
        made.mux(stream.encode(None))
    return buffer.getvalue()
