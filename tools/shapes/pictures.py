"""Training pictures: drawn scenes, degraded as by cameras and codecs, then letterboxed.

Seeds of training scenes are below `VALIDATION_SEED`; seeds for the evaluation are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from edged.shapes.scene import Scene, Truth

SIZE = 320
"""Side of the detector's square input, pixels."""
VALIDATION_SEED = 1_000_000_000

_FRAMES_A_SCENE = 6  # painting a background takes as long as many frames
_SIZES = ((320, 240), (640, 480), (640, 360), (480, 640), (512, 512), (424, 240), (800, 600), (1280, 720))
_SHARES = (0.15, 0.2, 0.18, 0.07, 0.08, 0.1, 0.04, 0.18)  # the smallest figures, in 16:9 pictures, are the hardest

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Letterbox:
    """The placement of a picture in the square: its scale, and the left and top padding in pixels."""

    scale: float
    left: int
    top: int


def letterbox(picture: Pixels, shrink: float = 1.0, interpolation: int = cv2.INTER_LINEAR) -> tuple[Pixels, Letterbox]:
    """Fit a picture into the middle of a grey (114) uint8 [SIZE, SIZE, 3] square; keep its aspect ratio."""
    height, width = picture.shape[:2]
    scale = min(SIZE / width, SIZE / height) * shrink
    wide, high = max(1, round(width * scale)), max(1, round(height * scale))
    left, top = (SIZE - wide) // 2, (SIZE - high) // 2
    square = np.full((SIZE, SIZE, 3), 114, np.uint8)
    square[top : top + high, left : left + wide] = cv2.resize(picture, (wide, high), interpolation=interpolation)
    return square, Letterbox(scale, left, top)


def pictures(worker_seed: int) -> Iterator[tuple[Pixels, NDArray[np.float32]]]:
    """Yield endless examples: uint8 [SIZE, SIZE, 3] RGB, and float32 [figures, 5] rows of class, x1, y1, x2, y2."""
    rng = np.random.default_rng(worker_seed)
    while True:
        width, height = _SIZES[int(rng.choice(len(_SIZES), p=_SHARES))]
        scene = Scene(int(rng.integers(VALIDATION_SEED)), width, height, int(rng.integers(0, 11)))
        for _ in range(_FRAMES_A_SCENE):
            picture, truths = scene.frame(int(rng.integers(0, 600)))
            shrink = float(rng.uniform(0.65, 1.0)) if rng.random() < 0.3 else 1.0
            interpolation = cv2.INTER_AREA if rng.random() < 0.3 else cv2.INTER_LINEAR
            square, box = letterbox(spoil(rng, picture), shrink, interpolation)
            yield cv2.cvtColor(square, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False), rows(truths, box)


def rows(truths: list[Truth], box: Letterbox) -> NDArray[np.float32]:
    """Return truths as float32 [n, 5] rows of class, x1, y1, x2, y2 in the letterboxed square."""
    table = np.array([(t.class_id, t.x1, t.y1, t.x2, t.y2) for t in truths], np.float32).reshape(-1, 5)
    table[:, 1:] = table[:, 1:] * box.scale + np.array([box.left, box.top] * 2, np.float32)
    return table


def spoil(rng: np.random.Generator, picture: Pixels) -> Pixels:
    """Degrade a picture as cameras do, each effect with some probability: light, blur, colour loss, noise, JPEG."""
    out: Any = picture  # cv2's declared result types are wider than the actual ones
    if rng.random() < 0.5:
        out = cv2.convertScaleAbs(out, alpha=float(rng.uniform(0.55, 1.35)), beta=float(rng.uniform(0, 30)))
    if rng.random() < 0.05:
        out = cv2.cvtColor(cv2.cvtColor(out, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    if rng.random() < 0.25:
        out = cv2.GaussianBlur(out, (0, 0), float(rng.uniform(0.4, max(0.5, 0.004 * min(picture.shape[:2])))))
    if rng.random() < 0.25:
        noise = rng.normal(0, rng.uniform(2, 16), picture.shape).astype(np.int16)
        out = cv2.add(out, noise, dtype=cv2.CV_8U)
    if rng.random() < 0.4:
        quality = int(rng.integers(35, 96))
        out = cv2.imdecode(cv2.imencode(".jpg", out, [cv2.IMWRITE_JPEG_QUALITY, quality])[1], cv2.IMREAD_COLOR)
    spoiled: Pixels = out
    return spoiled
