"""The embedded detector, and the drawn scenes on which `tools/shapes/` trains it."""

from __future__ import annotations

from pathlib import Path

from edged.shapes.matching import Counts, Prediction, match
from edged.shapes.scene import CLASSES, Scene, Truth

MODEL_PATH = Path(__file__).with_name("shapes.onnx")
"""ONNX file in the Ultralytics v8 layout: `images` [1, 3, 320, 320] to `output0` [1, 4 + classes, 2100]."""

SAMPLE_SEED = 3
"""Seed of the scene whose first frame stands in for a picture. The detector finds all five of its shapes."""

__all__ = ["CLASSES", "MODEL_PATH", "SAMPLE_SEED", "Counts", "Prediction", "Scene", "Truth", "match"]
