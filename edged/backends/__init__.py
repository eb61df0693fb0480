"""Runtimes behind one `contract`, listed in `registry`. Only this folder imports runtimes, each when it is loaded.

Backends: `onnxruntime` (helpers in `ort/`), `openvino`, `tensorrt` and `tensorrt_rtx` (both on `trt/`), and `null`,
which needs no runtime, for tests.
"""
