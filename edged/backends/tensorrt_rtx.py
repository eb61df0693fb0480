"""TensorRT for RTX: for desktop GPUs. It can build engines on a box without a GPU."""

from __future__ import annotations

from edged.backends.contract import Backend
from edged.backends.trt.api import load
from edged.backends.trt.backend import TensorRt

_MODULES = ("tensorrt_rtx", "tensorrt_rtx_bindings")

BACKEND: Backend = TensorRt("tensorrt_rtx", "TensorRT-RTX", "libtensorrt_rtx.so", load(_MODULES))
