"""Pictures and videos of one shade each, 64 x 48 unless another size is given."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np


def shade(value: int, size: tuple[int, int] = (64, 48)) -> np.ndarray:
    return np.full((size[1], size[0], 3), value, np.uint8)


def jpeg(value: int, size: tuple[int, int] = (64, 48)) -> bytes:
    return cv2.imencode(".jpg", shade(value, size))[1].tobytes()


def video(path: Path, values: Iterable[int], fps: float = 20) -> Path:
    """A file of Motion JPEG."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), fps, (64, 48))
    assert writer.isOpened()
    for value in values:
        writer.write(shade(value))
    writer.release()
    return path
