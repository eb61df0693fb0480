"""TensorRT 8.6 and later, as JetPack or a wheel installs it."""

from __future__ import annotations

from edged.backends.contract import Backend
from edged.backends.trt.api import load
from edged.backends.trt.backend import TensorRt

BACKEND: Backend = TensorRt("tensorrt", "TensorRT", "libnvinfer.so", load(("tensorrt", "tensorrt_bindings")))
