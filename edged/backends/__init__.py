"""Each backend wraps one runtime behind the same `contract`. `registry` lists the backends. Only this folder imports
runtimes, and only when a backend is loaded.

Backends: `onnxruntime` (helpers in `ort/`), `openvino`, `tensorrt` and `tensorrt_rtx` (both on `trt/`), and `null`,
which needs no runtime, for tests.
"""
