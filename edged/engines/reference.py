"""The engine that every other is compared with."""

from __future__ import annotations

from edged.backends.contract import UNOPTIMISED, Recipe

# ONNX Runtime with the model as it was written: it needs no build.
REFERENCE = Recipe("onnxruntime", optimization=UNOPTIMISED)
