"""Stands in for skl2onnx."""

from __future__ import annotations


class FloatTensorType:
    def __init__(self, shape: list) -> None:
        self.shape = shape
