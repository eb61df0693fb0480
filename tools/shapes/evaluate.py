"""Evaluates a detector on drawn scenes that training does not use: precision and recall at IoU 0.5, in plain numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from edged.shapes.matching import Counts, Prediction, match
from edged.shapes.scene import CLASSES, Scene
from tools.shapes.pictures import VALIDATION_SEED, Letterbox, letterbox

Floats = NDArray[np.float32]
Run = Callable[[Floats], Floats]
"""Runs the model: [1, 3, SIZE, SIZE] RGB in 0..1 to [1, 4 + classes, cells]."""

RESOLUTIONS = ((320, 240), (640, 480), (1280, 720))
_FRAME_STEP = 61  # far enough apart that figures have moved and turned


def unseen(count: int, size: tuple[int, int], first_seed: int = VALIDATION_SEED) -> Iterator[Scene]:
    """Yield scenes of one size with 1 to 10 figures, with seeds that training never uses."""
    for number in range(count):
        yield Scene(first_seed + number, *size, shapes=1 + number % 10)


def judge(run: Run, scenes: Iterable[Scene], threshold: float, frames: int = 3, quality: int = 0) -> Counts:
    """Return the summed counts over some frames of each scene, encoded as JPEG of `quality` if that is not 0."""
    total = Counts()
    for scene in scenes:
        for index in range(frames):
            picture, truths = scene.frame(index * _FRAME_STEP)
            if quality:
                picture = through_jpeg(picture, quality)
            total += match(detect(run, picture, threshold), truths)
    return total


def through_jpeg(picture: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """Return the picture after JPEG encoding and decoding."""
    packed = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, quality])[1]
    return np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR), np.uint8)


def detect(run: Run, picture: NDArray[np.uint8], threshold: float) -> list[Prediction]:
    """Return the detections in a BGR picture, in its pixels."""
    square, box = letterbox(picture)
    tensor = square[:, :, ::-1].transpose(2, 0, 1)[None].astype(np.float32) / np.float32(255)
    return decode(run(tensor)[0], box, threshold)


def decode(output: Floats, box: Letterbox, threshold: float, overlap: float = 0.5) -> list[Prediction]:
    """Return the boxes of one raw output [4 + classes, cells] above a score, after suppression across all classes."""
    scores = output[4:].max(axis=0)
    keep = scores >= threshold
    centre, size = output[:2, keep].T, output[2:4, keep].T
    edges = np.concatenate([centre - size / 2, centre + size / 2], axis=1)
    edges = (edges - np.array([box.left, box.top] * 2)) / box.scale
    classes, scores = output[4 : 4 + len(CLASSES), keep].argmax(axis=0), scores[keep]
    return [
        Prediction(int(classes[i]), float(scores[i]), *(float(edge) for edge in edges[i]))
        for i in suppress(edges, scores, overlap)
    ]


def suppress(edges: NDArray[np.floating], scores: NDArray[np.floating], overlap: float) -> list[int]:
    """Return the indexes of xyxy boxes [n, 4] that no better box overlaps by more than IoU `overlap`, best first."""
    areas = (edges[:, 2] - edges[:, 0]) * (edges[:, 3] - edges[:, 1])
    order = np.argsort(-scores)
    kept: list[int] = []
    while order.size:
        best, rest = order[0], order[1:]
        kept.append(int(best))
        sides = np.minimum(edges[best, 2:], edges[rest, 2:]) - np.maximum(edges[best, :2], edges[rest, :2])
        both = np.clip(sides, 0, None).prod(axis=1)
        order = rest[both / (areas[best] + areas[rest] - both) <= overlap]
    return kept
