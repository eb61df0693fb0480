"""Small second models for pipelines of the embedded detector."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import edged
from edged.client.result import Detection, Result
from edged.shapes import Scene
from tests import models

COLORS = {"family": "classification", "names": "red,green,blue"}
_GRAPH = """(float[{batch},3,32,32] images) => (float[{batch},3] probabilities) {{
    pooled = GlobalAveragePool(images)
    flat = Flatten(pooled)
    scaled = Mul(flat, ten)
    probabilities = Softmax<axis=-1>(scaled)
}}"""


def colors(path: Path, batch: int | str = "N", contrast: float = 10.0) -> Path:
    """Save a classifier that finds the strongest color of a picture; the score grows with the contrast."""
    graph = _GRAPH.format(batch=batch)
    return models.save(models.parse(graph, {"ten": np.array(contrast, np.float32)}), path)


def settings() -> str:
    """Return the settings of the classifier, as in the file next to the model."""
    return "".join(f'{key} = "{value}"\n' for key, value in COLORS.items())


def picture(seed: int = 3, index: int = 0, **size: Any) -> bytes:
    """Return a JPEG of drawn shapes."""
    return cv2.imencode(".jpg", Scene(seed, **size).frame(index)[0])[1].tobytes()


def region(found: Detection, result: Result, margin: float = 0.0) -> edged.client.frames.Region:
    """Return the crop of a detection: the smallest region of whole pixels that contains its box."""
    across, along = (found.x2 - found.x1) * margin, (found.y2 - found.y1) * margin
    x1, y1 = math.floor(max(0.0, found.x1 - across)), math.floor(max(0.0, found.y1 - along))
    x2 = math.ceil(min(float(result.width), found.x2 + across))
    y2 = math.ceil(min(float(result.height), found.y2 + along))
    return x1, y1, x2 - x1, y2 - y1
